package scafo

// outcome is what is to be done with a request. Its text is the value of the placeholder {scafo.route}.
type outcome string

const (
	// found: send it to the upstreams.
	found outcome = "found"
	// isDenied: a path that is never proxied, on a host of the API, or a target that is none of HTTP.
	isDenied outcome = "denied"
	// unknown: no fleet serves that host.
	unknown outcome = "unknown"
	// unavailable: no fleet that has been heard from serves that host, and not all have been heard from.
	unavailable outcome = "unavailable"
)

// decision is the outcome for one request, and where it goes if it was found.
type decision struct {
	outcome outcome
	fleet   string
	target  *target
}

// known is the document held for one fleet; table is nil until the first has come.
type known struct {
	fleet string
	table *table
}

// decide looks a request up. Pure: documents in configured order, the Host field and the raw paths in, a decision out.
//
// The host is looked up exactly in each fleet, then once with its first label as the wildcard. Within a fleet an
// application's route wins over a host of the API of the same name. A request has several paths if something before us
// rewrote it; one denied path is enough.
func decide(fleets []known, hostField string, paths ...string) decision {
	h, ok := parseHost(hostField)
	if !ok {
		return decision{outcome: unknown}
	}
	silent := false
	for _, f := range fleets {
		if f.table == nil {
			silent = true
			continue
		}
		if to := f.table.routes[string(h)]; to != nil {
			return decision{found, f.fleet, to}
		}
		if to := f.table.api[string(h)]; to != nil {
			return decideAPI(f, to, paths)
		}
	}
	if key, ok := h.wildcardKey(); ok {
		for _, f := range fleets {
			if f.table == nil {
				continue
			}
			if to := f.table.routes[key]; to != nil {
				return decision{found, f.fleet, to}
			}
		}
	}
	if silent {
		return decision{outcome: unavailable}
	}
	return decision{outcome: unknown}
}

func decideAPI(f known, to *target, paths []string) decision {
	for _, path := range paths {
		if deniedInAnySpelling(path, f.table.denied) {
			return decision{outcome: isDenied, fleet: f.fleet}
		}
	}
	return decision{found, f.fleet, to}
}
