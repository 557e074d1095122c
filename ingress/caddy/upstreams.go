package scafo

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

func init() {
	caddy.RegisterModule(Upstreams{})
}

// Upstreams are those of the requested host, in the order that the routing document gives them.
//
// The reverse proxy is offered one at a time: the first for the first attempt, the next one for each retry. So whatever
// its load-balancing policy is, an upstream is used only after those before it have failed. One that has failed is tried
// last for two seconds, and then for all but one request at a time until one is answered. A request that is not to be
// proxied has no upstream, and the placeholder {scafo.route} says why.
type Upstreams struct {
	app *App
}

// CaddyModule says what this module is called.
func (Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.upstreams.scafo",
		New: func() caddy.Module { return new(Upstreams) },
	}
}

// Provision finds the fleets.
func (u *Upstreams) Provision(ctx caddy.Context) (err error) {
	u.app, err = appOf(ctx)
	return err
}

// UnmarshalCaddyfile reads
//
//	dynamic scafo
func (*Upstreams) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return onlyName(d)
}

// onlyName reads a module that has nothing to configure.
func onlyName(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		return d.Errf("unknown option %s: there are none", d.Val())
	}
	return nil
}

// attempts are those of one request at one reverse proxy.
type attempts struct {
	of *Upstreams
	// hostField is as it was at the first attempt: the proxy may rewrite it for an upstream.
	hostField string
	// tried are the upstreams tried so far, each once, the last one last.
	tried []string
}

// attemptsVar is where the attempts of a request are kept, for the retries and for the handler.
const attemptsVar = "scafo.attempts"

// GetUpstreams is asked before each attempt. That it is asked again for the same request means that the attempt before
// has failed.
func (u *Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	a, _ := caddyhttp.GetVar(r.Context(), attemptsVar).(*attempts)
	if a == nil || a.of != u {
		a = &attempts{of: u, hostField: r.Host}
		caddyhttp.SetVar(r.Context(), attemptsVar, a)
	} else {
		a.markLast(r)
	}
	d := u.app.decide(r, a.hostField)
	if d.outcome != found || len(d.target.upstreams) == 0 {
		return nil, nil
	}
	address := failed.next(d.target.upstreams, a.tried, time.Now())
	a.tried = append(slices.DeleteFunc(a.tried, func(earlier string) bool { return earlier == address }), address)
	return []*reverseproxy.Upstream{{Dial: address}}, nil
}

// markLast notes that the last attempt has failed, unless the client's own body did: that says nothing about an upstream.
func (a *attempts) markLast(r *http.Request) {
	if len(a.tried) > 0 && !bodyFailed(r) {
		failed.set(a.tried[len(a.tried)-1], time.Now())
	}
}

// decide decides about r, whose Host field is hostField, and publishes that.
func (a *App) decide(r *http.Request, hostField string) decision {
	d := decision{outcome: isDenied}
	if targets := targetsOf(r); !slices.ContainsFunc(targets, isRootless) {
		d = decide(a.known(), hostField, paths(targets)...)
	}
	publish(r, d)
	return d
}

// targetsOf are the targets of r: as the client sent it, and as it is now. They differ if something rewrote it.
func targetsOf(r *http.Request) []*url.URL {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if !ok || original.URL == nil {
		return []*url.URL{r.URL}
	}
	return []*url.URL{original.URL, r.URL}
}

// isRootless tells whether Go read a scheme in target and no path after it (RFC 3986 §3.3), as in x:http://host/path. HTTP
// has no such target (RFC 9112 §3.2), and Caddy would send on what stands after the scheme, with a path that nobody saw.
func isRootless(target *url.URL) bool { return target.Opaque != "" }

// paths are the raw paths of targets, each once. None of them may be a denied one.
func paths(targets []*url.URL) []string {
	var paths []string
	for _, target := range targets {
		paths = append(paths, target.EscapedPath())
	}
	return slices.Compact(paths)
}

// publish sets the placeholders of a decision.
func publish(r *http.Request, d decision) {
	resolve, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	application := ""
	if d.target != nil {
		application = d.target.application
	}
	resolve.Set("scafo.route", string(d.outcome))
	resolve.Set("scafo.fleet", d.fleet)
	resolve.Set("scafo.application", application)
}

// String is what the log shows of it.
func (u *Upstreams) String() string {
	return fmt.Sprintf("scafo, %d fleets", len(u.app.links))
}

var (
	_ caddy.Provisioner           = (*Upstreams)(nil)
	_ caddyfile.Unmarshaler       = (*Upstreams)(nil)
	_ reverseproxy.UpstreamSource = (*Upstreams)(nil)
)
