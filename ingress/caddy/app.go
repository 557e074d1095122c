package scafo

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	caddy.RegisterModule(App{})
	httpcaddyfile.RegisterGlobalOption("scafo", parseGlobalOption)
}

const (
	// mostFleets: each request that no fleet names exactly is looked up in all of them.
	mostFleets = 64
	// firstWait is how long a new configuration waits for the first poll of fleets that are new to this process, so that
	// a restarted Caddy has its documents before it serves and before it looks for certificates. A node on this machine
	// answers within milliseconds; a dead one must not keep Caddy from starting.
	firstWait = 3 * time.Second
)

// App holds the fleets that this Caddy is an ingress of, and pulls their routing documents. The other modules of scafo
// work from it.
type App struct {
	// The fleets. A host is looked up exactly in each in this order, and then as a wildcard.
	Fleets []Fleet `json:"fleets"`

	links []*link
}

// CaddyModule says what this module is called.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "scafo", New: func() caddy.Module { return new(App) }}
}

// Provision checks the fleets and starts to poll them.
func (a *App) Provision(caddy.Context) error {
	if len(a.Fleets) == 0 || len(a.Fleets) > mostFleets {
		return fmt.Errorf("%d fleets are configured: name from 1 to %d in the global option scafo", len(a.Fleets), mostFleets)
	}
	var all []settings
	names := map[string]bool{}
	for i := range a.Fleets {
		s, err := a.Fleets[i].check()
		if err != nil {
			return err
		}
		if names[s.name] {
			return fmt.Errorf("there are two fleets named %q", s.name)
		}
		names[s.name] = true
		all = append(all, s)
	}
	for _, s := range all {
		l, err := acquire(s)
		if err != nil {
			return err
		}
		a.links = append(a.links, l)
	}
	a.awaitFirstPolls()
	return nil
}

func (a *App) awaitFirstPolls() {
	enough := time.NewTimer(firstWait)
	defer enough.Stop()
	for _, l := range a.links {
		if l.held.Load() != nil {
			continue
		}
		select {
		case <-l.attempted:
		case <-enough.C:
			return
		}
	}
}

// Cleanup lets go of the fleets. Requests that outlive the configuration still find its documents.
func (a *App) Cleanup() error {
	var failures []error
	for _, l := range a.links {
		failures = append(failures, release(l.settings))
	}
	return errors.Join(failures...)
}

// Start does nothing: the pollers run since Provision, because storage is asked before apps start.
func (*App) Start() error { return nil }

// Stop does nothing: the pollers end with Cleanup.
func (*App) Stop() error { return nil }

// known are the documents held now.
func (a *App) known() []known {
	return knownOf(a.links)
}

func knownOf(links []*link) []known {
	fleets := make([]known, len(links))
	for i, l := range links {
		fleets[i] = known{l.name, l.held.Load()}
	}
	return fleets
}

// appOf gives a module the app of its configuration.
func appOf(ctx caddy.Context) (*App, error) {
	// Caddy's storage commands give a storage nothing of the configuration around it; Context.App panics there.
	value, err := ctx.AppIfConfigured("scafo")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, fmt.Errorf("there are no fleets: name them in the global option scafo (Caddy's storage commands do not get to see it): %w", err)
	}
	if err != nil {
		return nil, err
	}
	app, ok := value.(*App)
	if !ok {
		return nil, fmt.Errorf("the app scafo is a %T, of another plugin", value)
	}
	return app, nil
}

// parseGlobalOption reads the global option:
//
//	scafo {
//		fleet NAME {
//			node            http://HOST:PORT
//			token_file      PATH
//			token           TOKEN
//			prefer          self|NODE
//			poll_interval   DURATION
//			storage_timeout DURATION
//		}
//	}
func parseGlobalOption(d *caddyfile.Dispenser, earlier any) (any, error) {
	if earlier != nil {
		return nil, d.Err("scafo is given twice: put all fleets into one block")
	}
	d.Next()
	if d.NextArg() {
		return nil, d.ArgErr()
	}
	var app App
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "fleet" {
			return nil, d.Errf("unknown option %s: there is only fleet", d.Val())
		}
		var fleet Fleet
		if err := fleet.unmarshalCaddyfile(d); err != nil {
			return nil, err
		}
		app.Fleets = append(app.Fleets, fleet)
	}
	return httpcaddyfile.App{Name: "scafo", Value: caddyconfig.JSON(app, nil)}, nil
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
