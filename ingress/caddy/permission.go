package scafo

import (
	"context"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
)

func init() {
	caddy.RegisterModule(Permission{})
}

// Permission approves a certificate on demand for the names that some fleet's current document names exactly, as a route
// or as a host of the API, and for no other. It answers from the documents held. A wildcard key approves nothing: who
// sends a request chooses the name, and a certificate for each would exhaust what the authority issues for the domain.
type Permission struct {
	app *App
}

// CaddyModule says what this module is called.
func (Permission) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "tls.permission.scafo", New: func() caddy.Module { return new(Permission) }}
}

// Provision finds the fleets.
func (p *Permission) Provision(ctx caddy.Context) (err error) {
	p.app, err = appOf(ctx)
	return err
}

// UnmarshalCaddyfile reads
//
//	on_demand_tls {
//		permission scafo
//	}
func (*Permission) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	return onlyName(d)
}

// CertificateAllowed answers nil for a name that may have a certificate.
func (p *Permission) CertificateAllowed(_ context.Context, name string) error {
	return permitted(p.app.known(), name)
}

func permitted(fleets []known, name string) error {
	h, ok := parseHost(name)
	if !ok || string(h) != strings.ToLower(name) {
		return fmt.Errorf("%w: %q is no host that a fleet can name", caddytls.ErrPermissionDenied, name)
	}
	silent := false
	for _, f := range fleets {
		if f.table == nil {
			silent = true
		} else if f.table.names(h) {
			return nil
		}
	}
	if silent {
		return fmt.Errorf("%w: no routing document names %q, and not every fleet has been heard from", caddytls.ErrPermissionDenied, name)
	}
	return fmt.Errorf("%w: no routing document names %q", caddytls.ErrPermissionDenied, name)
}

var (
	_ caddy.Provisioner           = (*Permission)(nil)
	_ caddyfile.Unmarshaler       = (*Permission)(nil)
	_ caddytls.OnDemandPermission = (*Permission)(nil)
)
