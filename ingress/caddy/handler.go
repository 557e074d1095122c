package scafo

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Handler{})
	caddy.RegisterModule(Match{})
	httpcaddyfile.RegisterHandlerDirective("scafo", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		handler := new(Handler)
		return handler, handler.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder("scafo", httpcaddyfile.Before, "reverse_proxy")
}

// Handler answers what is not to be proxied, and passes the rest on: 404 for a host that no fleet serves and for a
// denied path on a host of the API, 503 while a fleet that may serve the host has not been heard from. It also tells the
// upstreams which of them have failed.
type Handler struct {
	app *App
}

// CaddyModule says what this module is called.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.scafo", New: func() caddy.Module { return new(Handler) }}
}

// Provision finds the fleets.
func (h *Handler) Provision(ctx caddy.Context) (err error) {
	h.app, err = appOf(ctx)
	return err
}

// UnmarshalCaddyfile reads
//
//	scafo [<matcher>]
func (*Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return onlyName(d)
}

// ServeHTTP decides about one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	d := h.app.decide(r, r.Host)
	if d.outcome == isDenied && slices.ContainsFunc(targetsOf(r), isRootless) {
		return answer(w, problem{"urn:scafo:invalid-input", "Malformed request", http.StatusBadRequest,
			"the target has to be a path or a URL: after its scheme comes no slash"})
	}
	if opensTunnel(r) {
		return answer(w, problem{"urn:scafo:method-not-allowed", "Method not allowed", http.StatusMethodNotAllowed,
			"this ingress opens no tunnels: send the request itself"})
	}
	if d.outcome != found {
		return answer(w, problemOf(d.outcome))
	}
	watchBody(r)
	var dial waiting
	err := next.ServeHTTP(w, dial.watch(r))
	if a, ok := caddyhttp.GetVar(r.Context(), attemptsVar).(*attempts); ok {
		// To a client that has gone Caddy answers 499 without an error, whatever it waited for.
		hasGone := r.Context().Err() != nil
		if gaveNoAnswer(err) || hasGone && dial.isSlow(time.Now()) {
			a.markLast(r)
		}
	}
	return err
}

// opensTunnel tells whether r is a CONNECT (RFC 9110 §9.3.6) other than the opening of a WebSocket over HTTP/2 or 3.
func opensTunnel(r *http.Request) bool {
	extended := r.Header.Get(":protocol") == "websocket" || r.ProtoMajor == 3 && r.Proto == "websocket"
	return r.Method == http.MethodConnect && !extended
}

// gaveNoAnswer tells whether err is what the reverse proxy makes of an upstream that cannot be reached or broke off.
func gaveNoAnswer(err error) bool {
	var handled caddyhttp.HandlerError
	return errors.As(err, &handled) && handled.StatusCode == http.StatusBadGateway
}

// problem is a problem document (RFC 9457). The texts name no address: clients are strangers.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func problemOf(o outcome) problem {
	switch o {
	case isDenied:
		return problem{"urn:scafo:not-found", "Not found", http.StatusNotFound, "this path is not served to the outside"}
	case unavailable:
		return problem{"urn:scafo:draining", "Not now", http.StatusServiceUnavailable,
			"the routing of this fleet is not known here yet: try again in a moment"}
	default:
		return problem{"urn:scafo:not-found", "Not found", http.StatusNotFound,
			"no application answers on this host: check its name, and that it is deployed and running"}
	}
}

func answer(w http.ResponseWriter, p problem) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable {
		// Polls come at most a few seconds apart.
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_, err = w.Write(body)
	return err
}

// Match matches requests by what is to be done with them, for a configuration that wants other answers than Handler's.
type Match struct {
	// Any of found, denied, unknown and unavailable.
	Outcomes []string `json:"outcomes"`

	app *App
}

// CaddyModule says what this module is called.
func (Match) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.scafo", New: func() caddy.Module { return new(Match) }}
}

// Provision checks the outcomes and finds the fleets.
func (m *Match) Provision(ctx caddy.Context) (err error) {
	every := []string{string(found), string(isDenied), string(unknown), string(unavailable)}
	if len(m.Outcomes) == 0 {
		return errors.New("name what to match: " + strings.Join(every, ", "))
	}
	for _, name := range m.Outcomes {
		if !slices.Contains(every, name) {
			return errors.New("there is no outcome " + name + ", only " + strings.Join(every, ", "))
		}
	}
	m.app, err = appOf(ctx)
	return err
}

// UnmarshalCaddyfile reads
//
//	@name scafo <outcome>...
func (m *Match) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	for d.Next() {
		m.Outcomes = append(m.Outcomes, d.RemainingArgs()...)
		for nesting := d.Nesting(); d.NextBlock(nesting); {
			return d.Errf("unknown option %s: there are none", d.Val())
		}
	}
	return nil
}

// MatchWithError decides about one request.
func (m *Match) MatchWithError(r *http.Request) (bool, error) {
	return slices.Contains(m.Outcomes, string(m.app.decide(r, r.Host).outcome)), nil
}

var (
	_ caddy.Provisioner                 = (*Handler)(nil)
	_ caddyfile.Unmarshaler             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler       = (*Handler)(nil)
	_ caddy.Provisioner                 = (*Match)(nil)
	_ caddyfile.Unmarshaler             = (*Match)(nil)
	_ caddyhttp.RequestMatcherWithError = (*Match)(nil)
)
