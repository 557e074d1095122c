package scafo

import "strings"

// longestHost is the longest name of a host in its text form (RFC 1035 §2.3.4).
const longestHost = 253

// host is a name as a document spells it: lower case, no port, no trailing dot. It is no pattern and no IPv6 literal.
type host string

// parseHost reads a Host field or a server name. It answers false for what no document can name, which is then a host
// that nobody serves. One trailing dot is taken off (RFC 1034 §3.1: the same name written as absolute); a second one
// makes it no name.
func parseHost(text string) (host, bool) {
	name, port, _ := strings.Cut(text, ":")
	for i := range len(port) {
		if port[i] < '0' || port[i] > '9' {
			return "", false
		}
	}
	name = strings.TrimSuffix(name, ".")
	if !isName(name) {
		return "", false
	}
	return host(strings.ToLower(name)), true
}

// isName tells whether text is made of what host names are made of, in any case, without a trailing dot.
func isName(text string) bool {
	if text == "" || len(text) > longestHost || text[0] == '.' || text[len(text)-1] == '.' {
		return false
	}
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// wildcardKey is the key that covers h: its first label replaced by an asterisk. False for a host of one label.
func (h host) wildcardKey() (string, bool) {
	base, ok := h.base()
	return "*." + base, ok
}

// base is h without its first label. False for a host of one label.
func (h host) base() (string, bool) {
	_, base, _ := strings.Cut(string(h), ".")
	return base, base != ""
}
