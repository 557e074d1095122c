package scafo

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// CertMagic's layout of keys: certificates/<issuer>/<name>/…, ocsp/<name>-<hash>, and
// acme/<authority>/challenge_tokens/<name>.json. Its lock for issuing and renewing is issue_cert_<name>. Everything else
// (accounts, Caddy's own authority, time stamps) names no domain.
const (
	certificatesKey   = "certificates"
	staplesKey        = "ocsp"
	acmeKey           = "acme"
	challengesKey     = "challenge_tokens"
	issuanceLock      = "issue_cert_"
	wildcardInKey     = "wildcard_."
	wildcardInLock    = "*."
	challengeFileType = ".json"
)

// subject is the name that a certificate is for: a host, or everything one label below it.
type subject struct {
	host     host
	wildcard bool
}

// lock is the name of CertMagic's lock for issuing and renewing the certificate.
func (of subject) lock() string {
	if of.wildcard {
		return issuanceLock + wildcardInLock + string(of.host)
	}
	return issuanceLock + string(of.host)
}

// subjectOfKey is the subject that a key names; false if it names none.
func subjectOfKey(key string) (subject, bool) {
	parts := strings.Split(key, "/")
	last := len(parts) - 1
	switch {
	case parts[0] == certificatesKey && last >= 2:
		return parseSubject(parts[2], wildcardInKey)
	case parts[0] == staplesKey && last == 1:
		// The name is followed by a hash. Names may hold hyphens, the hash does not.
		hyphen := strings.LastIndexByte(parts[1], '-')
		if hyphen < 0 {
			return subject{}, false
		}
		return parseSubject(parts[1][:hyphen], wildcardInKey)
	case last >= 1 && parts[last-1] == challengesKey:
		return parseSubject(strings.TrimSuffix(parts[last], challengeFileType), wildcardInKey)
	}
	return subject{}, false
}

// isCertificate tells whether key is one of the files of a certificate: itself, its private key, or what is known of it.
func isCertificate(key string) bool {
	parts := strings.Split(key, "/")
	return parts[0] == certificatesKey && len(parts) > 3
}

// subjectOfLock is the subject that the name of a lock names; false if it names none.
func subjectOfLock(name string) (subject, bool) {
	text, ok := strings.CutPrefix(name, issuanceLock)
	if !ok {
		return subject{}, false
	}
	return parseSubject(text, wildcardInLock)
}

func parseSubject(text, wildcardPrefix string) (subject, bool) {
	base, wildcard := strings.CutPrefix(text, wildcardPrefix)
	h, ok := parseHost(base)
	return subject{h, wildcard}, ok
}

// isSpread tells whether prefix names no subject itself but may have keys of several below it.
func isSpread(prefix string) bool {
	parts := strings.Split(strings.Trim(prefix, "/"), "/")
	switch parts[0] {
	case "":
		return true
	case certificatesKey:
		return len(parts) <= 2
	case staplesKey:
		return len(parts) == 1
	case acmeKey:
		return len(parts) <= 2 || len(parts) == 3 && parts[2] == challengesKey
	}
	return false
}

// checkedKey is key in the form that the storage protocol puts into a path: each component percent-encoded by itself. A
// key has to be relative, printable ASCII, and without empty and dot segments.
func checkedKey(key string) (string, error) {
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' {
			return "", fmt.Errorf("storage key %q is not printable ASCII", key)
		}
	}
	parts := strings.Split(key, "/")
	for i, part := range parts {
		if part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("storage key %q has an empty or dot segment", key)
		}
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/"), nil
}

// home is where a subject's keys are.
type home int

const (
	// homeFleet: in the one fleet that names it.
	homeFleet home = iota
	// homeLocal: no fleet names it.
	homeLocal
	// homeUnknown: no document held names it, and not every fleet has been heard from.
	homeUnknown
)

// homeOf decides where the keys of a subject are, and in which of the fleets. A host belongs to the first fleet whose
// document names it exactly. A wildcard certificate, which operators get by a DNS challenge, belongs to the first fleet
// with anything directly below its base or with the base as a host of its API.
func homeOf(fleets []known, of subject) (home, int) {
	silent := false
	for i, f := range fleets {
		switch {
		case f.table == nil:
			silent = true
		case of.wildcard && f.table.covers(of.host), !of.wildcard && f.table.names(of.host):
			return homeFleet, i
		}
	}
	if silent {
		return homeUnknown, 0
	}
	return homeLocal, 0
}

// errHomeUnknown keeps a missing document from looking like a missing certificate, which would be issued anew.
var errHomeUnknown = errors.New("it is not known yet which fleet this belongs to: not every fleet's routing document has come")
