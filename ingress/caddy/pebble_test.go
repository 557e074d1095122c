package scafo

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// authority is an ACME server (Pebble) in this process, which looks for challenges on this machine whatever their name.
type authority struct {
	server *httptest.Server
	// roots is a file with the certificate of the server.
	roots string
	// challenges is the port where it looks for HTTP challenges.
	challenges int
	orders     atomic.Int64
	accounts   atomic.Int64
}

// freePort is a port that was free a moment ago; for what takes no listener.
func freePort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func newAuthority(t *testing.T) *authority {
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet := log.New(io.Discard, "", 0)
	resolver := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	names, err := challtestsrv.New(challtestsrv.Config{DNSAddrs: []string{resolver}, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	names.SetDefaultDNSIPv4("127.0.0.1")
	names.SetDefaultDNSIPv6("")
	go names.Run()
	t.Cleanup(names.Shutdown)

	a := &authority{challenges: freePort(t), roots: filepath.Join(t.TempDir(), "roots.pem")}
	store := db.NewMemoryStore()
	issuing := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "default"}})
	validation := va.New(quiet, a.challenges, freePort(t), false, resolver, store)
	front := wfe.New(quiet, store, validation, issuing, []string{"pebble.example"}, false, false, 1, 1)
	pebble := front.Handler()
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/order-plz":
			a.orders.Add(1)
		case "/sign-me-up":
			a.accounts.Add(1)
		}
		pebble.ServeHTTP(w, r)
	}))
	t.Cleanup(a.server.Close)
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw})
	if err := os.WriteFile(a.roots, root, 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// issueFrom makes the stage get its certificates from a, by HTTP challenges on this machine only.
func (s *stage) issueFrom(a *authority) *stage {
	s.issuer = fmt.Sprintf("tls {\non_demand\nissuer acme {\ndir %s/dir\ntrusted_roots %s\nemail ops@example.com\n}\n}", a.server.URL, a.roots)
	s.adjust = func(config string) string {
		challenges := fmt.Sprintf(`"challenges":{"bind_host":"127.0.0.1","http":{"alternate_port":%d},"tls-alpn":{"disabled":true}},`, a.challenges)
		changed := strings.Replace(config, `"module":"acme"`, challenges+`"module":"acme"`, 1)
		if changed == config {
			s.t.Fatal("no issuer in ", config)
		}
		return changed
	}
	return s
}

func TestAnAuthorityIsAskedOnceForAllIngressesOfAFleet(t *testing.T) {
	a, n := newAuthority(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	n.serveDocument(documentOf(map[string]string{"a.shop.example": shop, "*.shop.example": shop}, shop, "dev.example"))
	serials := map[string]string{}
	// Three ingresses one after the other, each with an empty disk.
	for ingress := range 3 {
		s := newStage(t).issueFrom(a)
		s.mustLoad(s.fleet(n, "main"), proxySite)
		for _, name := range []string{"a.shop.example", "dev.example"} {
			serial, err := s.shake(name)
			if err != nil {
				t.Fatal(name, err)
			}
			if earlier := serials[name]; earlier != "" && serial != earlier {
				t.Errorf("%s has another certificate", name)
			}
			serials[name] = serial
		}
		for i := range 50 {
			if _, err := s.shake(fmt.Sprintf("stranger-%d.shop.example", i)); err == nil {
				t.Error("a stranger's name got a certificate")
			}
		}
		if err := caddy.Stop(); err != nil {
			t.Fatal(err)
		}
		if accounts, _ := filepath.Glob(filepath.Join(s.dir, "local", "acme", "*", "users", "*")); ingress == 0 && len(accounts) != 1 {
			t.Error("the account is not on this disk:", accounts)
		}
	}
	if a.orders.Load() != 2 || a.accounts.Load() != 1 {
		t.Errorf("%d orders and %d accounts", a.orders.Load(), a.accounts.Load())
	}
	for _, key := range n.keys() {
		if strings.HasPrefix(key, "acme/") {
			t.Error("the fleet holds", key)
		}
	}
	if n.countRequests("PUT /v1/storage/objects/acme/") != 2 || n.countRequests("DELETE /v1/storage/objects/acme/") != 2 {
		t.Error("the challenges did not go through the fleet")
	}
	n.locked(func() {
		if len(n.locks) != 0 {
			t.Error("locks are still held:", n.locks)
		}
	})
}

// A written site is managed from the start on, and Caddy looks for its certificate only then.
func TestAWrittenSiteIsServedOnceItsNodeComesWithoutAReloadAndWithoutAnOrder(t *testing.T) {
	a, n := newAuthority(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	n.serveDocument(documentOf(map[string]string{"a.shop.example": shop}, ""))
	written := func() *stage {
		s := newStage(t).issueFrom(a)
		s.name = "a.shop.example"
		s.issuer = strings.Replace(s.issuer, "on_demand\n", "", 1)
		return s
	}
	served := func(s *stage) (serial string) {
		eventually(t, "a handshake", func() (ok bool) {
			got, err := s.shake("a.shop.example")
			serial = got
			return err == nil
		})
		return serial
	}
	s := written()
	s.mustLoad(s.fleet(n, "main"), proxySite)
	first := served(s)
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	n.locked(func() { n.down = true })
	s = written() // with an empty disk
	s.mustLoad(s.fleet(n, "main"), proxySite)
	eventually(t, "a look for the certificate while the node is down", func() (looked bool) {
		n.locked(func() { looked = n.missed > 0 })
		return looked
	})
	if _, err := s.shake("a.shop.example"); err == nil {
		t.Error("it is served without its certificate")
	}
	n.locked(func() { n.down = false })
	if serial := served(s); serial != first || a.orders.Load() != 1 {
		t.Errorf("the certificate is %s and not %s, after %d orders", serial, first, a.orders.Load())
	}
	// A configuration that waits in vain neither keeps another from starting nor Caddy from stopping.
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	n.locked(func() { n.down = true })
	for range 2 {
		s = written()
		s.mustLoad(s.fleet(n, "main"), proxySite)
	}
}
