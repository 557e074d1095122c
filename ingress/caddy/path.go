package scafo

import "strings"

// deniedInAnySpelling tells whether path (the raw path of a target) is under one of prefixes in any reading. Who reads
// the path behind us may decode it, collapse slashes or resolve dots, or none of that, so it counts as denied if any of
// these readings is: percent-decoded until nothing is left to decode, backslashes as slashes, empty and single-dot
// segments dropped, double-dot segments (RFC 3986 §5.2.4) both kept and resolved.
func deniedInAnySpelling(path string, prefixes []string) bool {
	if len(prefixes) == 0 {
		return false
	}
	text := strings.ReplaceAll(decodedFully(path), `\`, "/")
	var written, resolved []string
	for segment := range strings.SplitSeq(text, "/") {
		switch segment {
		case "", ".":
		case "..":
			written = append(written, segment)
			resolved = resolved[:max(len(resolved)-1, 0)]
		default:
			written = append(written, segment)
			resolved = append(resolved, segment)
		}
	}
	return denied("/"+strings.Join(written, "/"), prefixes) || denied("/"+strings.Join(resolved, "/"), prefixes)
}

// denied tells whether path, already normalised, is under one of prefixes at a segment boundary.
func denied(path string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if rest, ok := strings.CutPrefix(path, prefix); ok && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// decodedFully decodes escapes (RFC 3986 §2.1), and escapes that decoding has made, in one pass: a byte can only
// complete an escape whose other bytes stand right before it. What is no escape stays as it is.
func decodedFully(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		out = append(out, path[i])
		for n := len(out); n >= 3 && out[n-3] == '%'; n = len(out) {
			high, low := hexValue(out[n-2]), hexValue(out[n-1])
			if high < 0 || low < 0 {
				break
			}
			out = append(out[:n-3], byte(high<<4|low))
		}
	}
	return string(out)
}

// hexValue is the value of a hexadecimal digit, -1 for another byte.
func hexValue(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
