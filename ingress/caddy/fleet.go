package scafo

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

const (
	defaultPollInterval   = 5 * time.Second
	defaultStorageTimeout = 30 * time.Second

	// shortestPollInterval: below it, polling would cost more than anybody can notice.
	shortestPollInterval = 50 * time.Millisecond
	// longestPollInterval: a node holds a process for 35 s after it left the document; polling more slowly than this
	// would send requests to processes that are gone. A poll may take pollLimit, so that intervals of up to 10 s outlast one
	// that is lost.
	longestPollInterval = 30 * time.Second
	// shortestStorageTimeout: a write to the bucket behind the node takes tens of milliseconds on a good day.
	shortestStorageTimeout = 100 * time.Millisecond
	// longestStorageTimeout: an issuance waits for its storage, and has itself a limit of a few minutes.
	longestStorageTimeout = 5 * time.Minute

	// longestPrefer is the longest node id that is asked for; ids are host labels or shorter.
	longestPrefer = 253
	// longestFleetName: it is for the log and for placeholders.
	longestFleetName = 63
)

// Fleet is one fleet, reached through one of its nodes. The node is meant to be on this machine: the ingress token goes
// to it with every request.
type Fleet struct {
	// What the log and the placeholder {scafo.fleet} call it; unique. A reload that changes anything but the name keeps
	// the document.
	Name string `json:"name"`
	// Base URL of the node's API, http://HOST:PORT. Required.
	Node string `json:"node"`
	// File that holds the ingress token, read anew for each request to the node, so that a token may change. Required
	// unless Token is given.
	TokenFile string `json:"token_file,omitempty"`
	// The ingress token itself. Prefer TokenFile, or a placeholder like {env.SCAFO_INGRESS_TOKEN}: the configuration can
	// be read through Caddy's administration endpoint.
	Token string `json:"token,omitempty"`
	// Whose upstreams come first: self for the node that is asked, or a node id. Empty for the fleet's own order.
	Prefer string `json:"prefer,omitempty"`
	// Pause between two polls, from 50 ms to 30 s. Default: 5 s.
	PollInterval caddy.Duration `json:"poll_interval,omitempty"`
	// Limit of each storage request, from 100 ms to 5 min. Waiting for a lock is not bounded by it. Default: 30 s.
	StorageTimeout caddy.Duration `json:"storage_timeout,omitempty"`
}

// settings are a Fleet that has been checked. They are comparable: equal settings share one link.
type settings struct {
	name, node, tokenFile, token, prefer string
	pollInterval, storageTimeout         time.Duration
}

// check resolves placeholders and defaults. The errors never hold a token.
func (f *Fleet) check() (settings, error) {
	resolve := caddy.NewReplacer()
	s := settings{
		name:           f.Name,
		node:           strings.TrimRight(resolve.ReplaceAll(f.Node, ""), "/"),
		tokenFile:      resolve.ReplaceAll(f.TokenFile, ""),
		token:          strings.TrimSpace(resolve.ReplaceAll(f.Token, "")),
		prefer:         resolve.ReplaceAll(f.Prefer, ""),
		pollInterval:   withDefault(f.PollInterval, defaultPollInterval),
		storageTimeout: withDefault(f.StorageTimeout, defaultStorageTimeout),
	}
	if err := s.problem(); err != nil {
		return settings{}, fmt.Errorf("fleet %q: %w", f.Name, err)
	}
	return s, nil
}

func (s *settings) problem() error {
	if s.name == "" || len(s.name) > longestFleetName {
		return fmt.Errorf("its name has to have from 1 to %d characters", longestFleetName)
	}
	if err := checkNode(s.node); err != nil {
		return err
	}
	if (s.tokenFile == "") == (s.token == "") {
		return errors.New("give it token_file, or a token that is not empty, and not both")
	}
	if s.token != "" && !isToken(s.token) {
		return errors.New("its token holds characters that no token has")
	}
	if len(s.prefer) > longestPrefer {
		return fmt.Errorf("prefer is longer than any node id, %d characters", longestPrefer)
	}
	if s.pollInterval < shortestPollInterval || s.pollInterval > longestPollInterval {
		return fmt.Errorf("poll_interval %s is out of bounds: from %s to %s", s.pollInterval, shortestPollInterval, longestPollInterval)
	}
	if s.storageTimeout < shortestStorageTimeout || s.storageTimeout > longestStorageTimeout {
		return fmt.Errorf("storage_timeout %s is out of bounds: from %s to %s", s.storageTimeout, shortestStorageTimeout, longestStorageTimeout)
	}
	return nil
}

func checkNode(node string) error {
	u, err := url.Parse(node)
	// The text of err quotes the URL, which may hold a password.
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("its node is no URL of a node: write http://HOST:PORT")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(node, "?#") {
		return errors.New("its node has to be a plain http://HOST:PORT, without user, query or fragment")
	}
	return nil
}

func withDefault(given caddy.Duration, otherwise time.Duration) time.Duration {
	if given == 0 {
		return otherwise
	}
	return time.Duration(given)
}

// unmarshalCaddyfile reads the name and the block of one fleet; the dispenser stands on the word fleet.
func (f *Fleet) unmarshalCaddyfile(d *caddyfile.Dispenser) error {
	if !d.AllArgs(&f.Name) {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		var value string
		if !d.AllArgs(&value) {
			return d.ArgErr()
		}
		if err := f.setOption(d, option, value); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) setOption(d *caddyfile.Dispenser, option, value string) error {
	switch option {
	case "node":
		f.Node = value
	case "token_file":
		f.TokenFile = value
	case "token":
		f.Token = value
	case "prefer":
		f.Prefer = value
	case "poll_interval", "storage_timeout":
		duration, err := caddy.ParseDuration(value)
		if err != nil {
			return d.Errf("%s: %v", option, err)
		}
		if option == "poll_interval" {
			f.PollInterval = caddy.Duration(duration)
		} else {
			f.StorageTimeout = caddy.Duration(duration)
		}
	default:
		return d.Errf("unknown option %s: a fleet has node, token_file, token, prefer, poll_interval and storage_timeout", option)
	}
	return nil
}
