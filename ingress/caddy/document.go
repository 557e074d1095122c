package scafo

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// target is where the requests for a host go.
type target struct {
	// application is empty for the fleet's API.
	application string
	// upstreams are addresses in priority order. There are none only where the document gave none that can be dialled:
	// the host is known all the same, and must not fall to a wildcard.
	upstreams []string
}

// table is one document, ready for lookups. It never changes.
type table struct {
	// routes by host or wildcard key.
	routes map[string]*target
	api    map[string]*target
	denied []string
	// bases are the domains that a host in routes or api, or a wildcard key, stands directly below.
	bases map[string]struct{}
	// skipped counts addresses that cannot be dialled, left out one by one.
	skipped int
}

// The document as it is written. Members that are not named here are of no interest to an ingress, or of a later time.
type (
	document struct {
		Routes []struct {
			Host        string     `json:"host"`
			Application string     `json:"application"`
			Upstreams   []upstream `json:"upstreams"` // nil if it is missing, and not if it is empty
		} `json:"routes"`
		API *struct {
			Hosts     []string   `json:"hosts"`
			Upstreams []upstream `json:"upstreams"`
			Denied    []string   `json:"denied"`
		} `json:"api"`
	}
	upstream struct {
		Address string `json:"address"`
	}
)

var errOtherVersion = errors.New("it is not a routing document of version 1")

// parseDocument reads a whole document. It refuses one that ends early or goes on after its end, one whose v is not 1,
// and one that lacks a member: a half of a document would withdraw the other half.
func parseDocument(body []byte) (*table, error) {
	// Member names are matched exactly here; the decoder of structs would take V for v.
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, fmt.Errorf("it is not JSON, or was cut: %w", err)
	}
	if string(members["v"]) != "1" {
		return nil, errOtherVersion
	}
	var read document
	if routes, ok := members["routes"]; !ok || routes[0] != '[' {
		return nil, errors.New("it has no list of routes")
	} else if err := json.Unmarshal(routes, &read.Routes); err != nil {
		return nil, fmt.Errorf("its routes cannot be read: %w", err)
	}
	if api, ok := members["api"]; ok {
		if err := json.Unmarshal(api, &read.API); err != nil {
			return nil, fmt.Errorf("its api cannot be read: %w", err)
		}
	}
	return newTable(&read)
}

func newTable(read *document) (*table, error) {
	t := &table{
		routes: make(map[string]*target, len(read.Routes)),
		api:    map[string]*target{},
		bases:  map[string]struct{}{},
	}
	for i, route := range read.Routes {
		if route.Host == "" || route.Application == "" || route.Upstreams == nil {
			return nil, fmt.Errorf("route %d lacks its host, application or upstreams", i)
		}
		key := strings.ToLower(route.Host)
		if _, taken := t.routes[key]; taken {
			continue // hosts are unique; were one there twice, the renderer's rule is that the first wins
		}
		t.routes[key] = &target{application: route.Application, upstreams: t.dialled(route.Upstreams)}
		t.addBase(key)
	}
	if api := read.API; api != nil {
		if api.Hosts == nil || api.Upstreams == nil || api.Denied == nil {
			return nil, errors.New("its api lacks its hosts, upstreams or denied prefixes")
		}
		to := &target{upstreams: t.dialled(api.Upstreams)}
		for _, name := range api.Hosts {
			t.api[strings.ToLower(name)] = to
		}
		t.denied = api.Denied
	}
	return t, nil
}

func (t *table) addBase(key string) {
	if base, ok := host(key).base(); ok {
		t.bases[base] = struct{}{}
	}
}

// names tells whether the document names h exactly, as a route or as a host of the API. Wildcard keys name nothing.
func (t *table) names(h host) bool {
	return t.routes[string(h)] != nil || t.api[string(h)] != nil
}

// covers tells whether the document names base as a host of the API, or anything directly below it: the fleet that a
// wildcard certificate for base belongs to.
func (t *table) covers(base host) bool {
	_, below := t.bases[string(base)]
	return below || t.api[string(base)] != nil
}

func (t *table) dialled(upstreams []upstream) []string {
	addresses := make([]string, 0, len(upstreams))
	for _, upstream := range upstreams {
		if canBeDialled(upstream.Address) {
			addresses = append(addresses, upstream.Address)
		} else {
			t.skipped++
		}
	}
	return addresses
}

// canBeDialled tells whether address is host:port with an IP literal (IPv6 in brackets) or a name, and a port from 1.
// Caddy expands placeholders, port ranges and network names in the addresses that it dials; nothing of that passes.
func canBeDialled(address string) bool {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return false
	}
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.Zone() == ""
	}
	return isName(name) && !strings.Contains(address, "[")
}
