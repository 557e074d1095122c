package scafo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddytls/standardstek"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
)

// A process has one Caddy, so the tests in this file do not run in parallel.

func TestMain(m *testing.M) {
	data, err := os.MkdirTemp("", "scafo-caddy")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_DATA_HOME", data)
	code := m.Run()
	os.RemoveAll(data)
	os.Exit(code)
}

// stage is one Caddy in this process, on Unix sockets.
type stage struct {
	t   *testing.T
	dir string
	// name is the name of the site over HTTPS; empty for all.
	name string
	// issuer is how certificates are got.
	issuer string
	// written are sites of an operator's own.
	written string
	// adjust changes what the Caddyfile has no words for.
	adjust func(config string) string
	loaded bool
}

func newStage(t *testing.T) *stage {
	dir, err := os.MkdirTemp("", "scafo") // short, as the path of a socket has to be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		links.Range(func(key, _ any) bool {
			t.Errorf("the poller of fleet %s was left behind", key.(settings).name)
			return true
		})
		os.RemoveAll(dir)
	})
	return &stage{t: t, dir: dir, issuer: "tls internal {\non_demand\n}", adjust: func(config string) string { return config }}
}

const proxySite = `
	scafo
	reverse_proxy {
		dynamic scafo
		lb_retries 2
	}
`

// load runs a configuration with the fleets and the site given, over HTTP and over HTTPS.
func (s *stage) load(fleets, site string) error {
	config := fmt.Sprintf(`
{
	admin off
	persist_config off
	skip_install_trust
	auto_https disable_redirects
	storage scafo {
		local %[1]s/local
	}
	on_demand_tls {
		permission scafo
	}
	servers {
		protocols h1 h2
	}
	scafo {
		%[2]s
	}
}
http:// {
	bind unix/%[1]s/http.sock
	%[3]s
}
https://%[5]s {
	bind unix/%[1]s/https.sock
	%[4]s
	%[3]s
}
%[6]s
`, s.dir, fleets, site, s.issuer, s.name, s.written)
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	before := serving()
	if err := caddy.Load([]byte(s.adjust(string(adapted))), true); err != nil {
		return err
	}
	if s.loaded {
		// Caddy only begins to stop the servers of the configuration before, and a server that stops drops what it reads.
		eventually(s.t, "the end of the servers before", func() bool { return serving() <= before })
	}
	s.loaded = true
	return nil
}

// serving is how many listeners HTTP servers of this process accept from.
func serving() int {
	stacks := make([]byte, 16<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte("\nnet/http.(*Server).Serve("))
}

func (s *stage) mustLoad(fleets, site string) {
	s.t.Helper()
	if err := s.load(fleets, site); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) fleet(n *fakeNode, name string, more ...string) string {
	return fmt.Sprintf("fleet %s {\nnode %s\ntoken_file %s\nprefer self\npoll_interval 50ms\n%s\n}\n",
		name, n.server.URL, tokenFile(s.t, testToken+"\n"), strings.Join(more, "\n"))
}

func (s *stage) client() *http.Client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.dir, "http.sock"))
		},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get is the status of a GET, and its body.
func (s *stage) get(host, path string) string {
	s.t.Helper()
	return s.send(http.MethodGet, host, path)
}

func (s *stage) send(method, host, path string) string {
	s.t.Helper()
	status, _, body := s.raw(method, host, path)
	return fmt.Sprint(status, " ", body)
}

// raw sends a request with a target that no client library gets to tidy up.
func (s *stage) raw(method, host, target string) (int, http.Header, string) {
	s.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(s.dir, "http.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	body := ""
	if method == http.MethodPost {
		body = "payload"
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, target, host, len(body), body)
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

// backend answers its name.
func backend(t *testing.T, name string) (*httptest.Server, string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(server.Close)
	return server, strings.TrimPrefix(server.URL, "http://")
}

func (s *stage) expect(rows ...[3]string) {
	s.t.Helper()
	for _, row := range rows {
		if got := s.get(row[0], row[1]); !strings.HasPrefix(got, row[2]) {
			s.t.Errorf("%s %s: %s, not %s", row[0], row[1], got, row[2])
		}
	}
}

// rootless are targets that Go takes for a scheme and something opaque. Sent on, they are URLs with a denied path.
var rootless = []string{
	"x:http://dev.example/v1/storage", "http:http://dev.example/v1/storage/list?prefix=", "x:http://dev.example/", "x:v1/storage",
}

func TestRequestsReachWhatTheDocumentNames(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	_, wild := backend(t, "wild")
	_, api := backend(t, "api")
	n.serveDocument(documentOf(map[string]string{"shop.example": shop, "*.shop.example": wild}, api, "dev.example"))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	s.expect(
		[3]string{"shop.example", "/v1/storage", "200 shop"}, [3]string{"SHOP.example.:80", "/", "200 shop"},
		[3]string{"x.shop.example", "/", "200 wild"}, [3]string{"x.y.shop.example", "/", "404"},
		[3]string{"dev.example", "/v1/applications", "200 api"}, [3]string{"dev.example", "/v1/storagex", "200 api"},
		[3]string{"localhost", "/", "404"}, [3]string{"*.shop.example", "/", "404"}, [3]string{"127.0.0.1", "/", "404"},
	)
	for _, path := range []string{
		"/v1/storage", "/v1/storage/objects/x?a=b", "/v1//storage", "//v1/storage", "/v1/x/../storage", "/v1/%73torage", "/v1/%2573torage",
		`/v1\storage`, "/v1%2Fstorage", "/v1/ingress/routes", "/v1/ingress/routes/traefik", "http://dev.example/v1/storage",
	} {
		status, header, body := s.raw(http.MethodGet, "dev.example", path)
		var p problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || status != 404 || p.Detail != problemOf(isDenied).Detail ||
			header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, host := range []string{"dev.example", "shop.example"} {
		for _, target := range rootless {
			if status, _, body := s.raw(http.MethodGet, host, target); status != http.StatusBadRequest || !strings.Contains(body, "invalid-input") {
				t.Errorf("%s %s: %d %s", host, target, status, body)
			}
		}
	}
	if status, _, _ := s.raw(http.MethodConnect, "shop.example:80", "shop.example:80"); status != http.StatusMethodNotAllowed {
		t.Error("CONNECT is answered", status)
	}
}

func TestUpstreamsAreUsedInOrderAndTheNextOnesOnlyWhenOneFails(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	first, firstAddress := backend(t, "first")
	second, secondAddress := backend(t, "second")
	_, third := backend(t, "third")
	n.serveDocument(documentOf(map[string]string{"shop.example": strings.Join([]string{firstAddress, secondAddress, third}, ",")}, ""))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	for range 20 {
		s.expect([3]string{"shop.example", "/", "200 first"})
	}
	first.Close()
	for range 20 {
		s.expect([3]string{"shop.example", "/", "200 second"})
		if got := s.send(http.MethodPost, "shop.example", "/"); got != "200 second" {
			t.Error(got)
		}
	}
	second.Close()
	// A GET finds out; a POST on a connection that was kept alive could not be tried again.
	s.expect([3]string{"shop.example", "/", "200 third"})
	if got := s.send(http.MethodPost, "shop.example", "/"); got != "200 third" {
		t.Error(got)
	}
}

func TestAWebSocketGoesThrough(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, r.Host+" "+line)
	}))
	t.Cleanup(echo.Close)
	dead, deadAddress := backend(t, "dead")
	dead.Close()
	n.serveDocument(documentOf(map[string]string{"shop.example": deadAddress + "," + strings.TrimPrefix(echo.URL, "http://")}, ""))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	conn, err := net.Dial("unix", filepath.Join(s.dir, "http.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "shop.example hello\n" {
		t.Error(line, err)
	}
}

func TestWithoutRetriesOnlyOneRequestFindsOutThatAnUpstreamIsDead(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	dead, deadAddress := backend(t, "dead")
	_, alive := backend(t, "alive")
	n.serveDocument(documentOf(map[string]string{"shop.example": deadAddress + "," + alive}, ""))
	s.mustLoad(s.fleet(n, "main"), "scafo\nreverse_proxy {\ndynamic scafo\n}")
	dead.Close()
	s.expect([3]string{"shop.example", "/", "502"}, [3]string{"shop.example", "/", "200 alive"})
}

// onlyLink is the one link of this process.
func onlyLink(t *testing.T) (only *link) {
	t.Helper()
	links.Range(func(_, value any) bool {
		if only != nil {
			t.Error("there are two links")
		}
		only = value.(*link)
		return true
	})
	return only
}

func TestWithoutADocumentTheAnswerIs503AndALostOneIsKept(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	fleet := s.fleet(n, "main")
	s.mustLoad(fleet, proxySite)
	status, header, body := s.raw(http.MethodGet, "shop.example", "/")
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || !strings.Contains(body, "urn:scafo:draining") {
		t.Error(status, header, body)
	}
	n.serveDocument(documentOf(map[string]string{"shop.example": shop}, ""))
	eventually(t, "the document", func() bool { return s.get("shop.example", "/") == "200 shop" })
	s.expect([3]string{"other.example", "/", "404"})

	n.answerPolls(nil)
	before := 0
	n.locked(func() { before = n.polls })
	eventually(t, "failed polls", func() bool {
		now := 0
		n.locked(func() { now = n.polls })
		return now > before+3
	})
	s.expect([3]string{"shop.example", "/", "200 shop"})
	// Neither a reload that changes nothing of the fleet loses it, nor one that does.
	poller := onlyLink(t)
	s.mustLoad(fleet, "header X-New yes\n"+proxySite)
	s.expect([3]string{"shop.example", "/", "200 shop"})
	if onlyLink(t) != poller {
		t.Error("a reload that changes nothing of the fleet began a new poller")
	}
	s.mustLoad(s.fleet(n, "main", "storage_timeout 5s"), proxySite)
	s.expect([3]string{"shop.example", "/", "200 shop"})
}

func TestAProxyWithoutTheHandlerForwardsNothingThatIsDenied(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, api := backend(t, "api")
	n.serveDocument(documentOf(nil, api, "dev.example"))
	site := `
		@moved path /moved
		reverse_proxy @moved {
			dynamic scafo
			rewrite /v1/storage
		}
		reverse_proxy {
			dynamic scafo
			lb_retries 2
			header_up Host {upstream_hostport}
		}
		handle_errors {
			respond "{scafo.route}" {err.status_code}
		}
	`
	s.mustLoad(s.fleet(n, "main"), site)
	s.expect(
		[3]string{"dev.example", "/", "200 api"}, [3]string{"dev.example", "/v1/storage", "503 denied"},
		[3]string{"dev.example", "/moved", "503 denied"}, [3]string{"x.example", "/", "503 unknown"},
	)
	for _, target := range rootless {
		s.expect([3]string{"dev.example", target, "503 denied"})
	}
}

func TestTheMatcherAndThePlaceholdersLetAConfigurationAnswerItself(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	n.serveDocument(documentOf(map[string]string{"shop.example": shop}, shop, "dev.example"))
	site := `
		@denied scafo denied
		respond @denied "no" 403
		@nobody scafo unknown unavailable
		respond @nobody "{scafo.route}" 418
		respond "{scafo.route} {scafo.fleet} {scafo.application}"
	`
	s.mustLoad(s.fleet(n, "main"), site)
	s.expect(
		[3]string{"dev.example", "/v1/storage", "403 no"}, [3]string{"x.example", "/", "418 unknown"},
		[3]string{"dev.example", rootless[0], "403 no"},
		[3]string{"shop.example", "/", "200 found main shop"},
	)
}

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	good := s.fleet(n, "main")
	for _, bad := range []struct{ fleets, site, says string }{
		{"", proxySite, "1 to 64"}, {good + good, proxySite, "two fleets"}, {good, "@x scafo lost\nrespond @x 200", "no outcome lost"},
		{"fleet main {\nnode nonsense\ntoken x\n}", proxySite, "http://HOST:PORT"}, {s.fleet(n, "main", "later 1"), proxySite, "unknown option later"},
		{good, "scafo {\nx\n}\n", "unknown option x"}, {s.fleet(n, "main", "storage_timeout soon"), proxySite, "storage_timeout"},
		{"node http://127.0.0.1:1", proxySite, "only fleet"}, {s.fleet(n, ""), proxySite, "rong argument count"},
		{"fleet main {\nnode http://127.0.0.1:1\ntoken secret-token\npoll_interval 1h\n}", proxySite, "poll_interval"},
		{"fleet main {\nnode http://127.0.0.1:1\ntoken secret-token\ntoken_file x\n}", proxySite, "not both"},
		{"fleet main {\nnode http://secret-token@127.0.0.1:1\ntoken x\n}", proxySite, "without user"},
	} {
		if err := s.load(bad.fleets, bad.site); err == nil || !strings.Contains(err.Error(), bad.says) || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%s: %v", bad.says, err)
		}
	}
}

// As caddy storage export does it.
func TestAStorageWithoutItsConfigurationSaysWhatIsMissing(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	if err := new(Storage).Provision(ctx); !errors.Is(err, caddy.ErrNotConfigured) || !strings.Contains(err.Error(), "global option scafo") {
		t.Error(err)
	}
}

func TestNoRequestFailsWhileDocumentsAndConfigurationsChange(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	many := map[string]string{"shop.example": shop}
	few := documentOf(many, "")
	for i := range 10_000 {
		many[fmt.Sprintf("host-%d.example", i)] = shop
	}
	full := documentOf(many, "")
	n.serveDocument(few)
	fleet := s.fleet(n, "main")
	s.mustLoad(fleet, proxySite)
	var stop atomic.Bool
	var requests atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		client := s.client()
		all.Go(func() {
			for !stop.Load() {
				request, _ := http.NewRequest(http.MethodGet, "http://shop.example/", nil)
				response, err := client.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				if string(body) != "shop" || err != nil {
					t.Errorf("%d %s %v", response.StatusCode, body, err)
					return
				}
				requests.Add(1)
			}
		})
	}
	for round := range 6 {
		last := fmt.Sprintf("host-%d.example", 9_999)
		n.serveDocument(full)
		eventually(t, "the large document", func() bool { return s.get(last, "/") == "200 shop" })
		n.serveDocument(few)
		eventually(t, "the small document", func() bool { return strings.HasPrefix(s.get(last, "/"), "404") })
		if round == 3 {
			s.mustLoad(fleet, "header X-Round yes\n"+proxySite)
		}
	}
	stop.Store(true)
	all.Wait()
	t.Log(requests.Load(), "requests")
}

// shake makes a TLS handshake for name and gives the serial number of the certificate.
func (s *stage) shake(name string) (string, error) {
	conn, err := net.Dial("unix", filepath.Join(s.dir, "https.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	client := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := client.Handshake(); err != nil {
		return "", err
	}
	leaf := client.ConnectionState().PeerCertificates[0]
	return leaf.SerialNumber.String(), leaf.VerifyHostname(name)
}

func TestCertificatesComeOnDemandForExactNamesAndLiveInTheFleet(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	n.serveDocument(documentOf(map[string]string{"a.shop.example": shop, "*.shop.example": shop}, shop, "dev.example"))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	serials := map[string]string{}
	for _, name := range []string{"a.shop.example", "dev.example"} {
		serial, err := s.shake(name)
		if err != nil {
			t.Fatal(name, err)
		}
		serials[name] = serial
	}
	for _, name := range []string{"b.shop.example", "shop.example", "x.dev.example", "stranger.example"} {
		if _, err := s.shake(name); err == nil {
			t.Errorf("%s got a certificate", name)
		}
	}
	for _, expected := range []string{"certificates/local/a.shop.example/a.shop.example.key", "certificates/local/dev.example/dev.example.crt"} {
		if !slices.Contains(n.keys(), expected) {
			t.Errorf("the fleet holds %v", n.keys())
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "local", "certificates")); err == nil {
		t.Error("certificates of the fleet are on this disk too")
	}
	if _, err := os.Stat(filepath.Join(s.dir, "local", "pki")); err != nil {
		t.Error("Caddy's own authority is not on this disk:", err)
	}
	if n.countRequests("POST /v1/storage/locks/issue_cert_") == 0 || len(n.locks) != 0 {
		t.Error("issued without a lock, or the lock is still held:", n.locks)
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	// Another Caddy with an empty disk serves the same certificates.
	other := newStage(t)
	other.mustLoad(other.fleet(n, "main"), proxySite)
	for name, serial := range serials {
		if got, err := other.shake(name); err != nil || got != serial {
			t.Errorf("%s was issued anew: %s, %v", name, got, err)
		}
	}
}

func TestAWildcardCertificateOfAnOperatorServesWhatIsBelowItAndNotItsApex(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	_, shop := backend(t, "shop")
	n.serveDocument(documentOf(map[string]string{"a.shop.example": shop, "shop.example": shop, "*.shop.example": shop}, ""))
	s.written = fmt.Sprintf("https://*.shop.example {\nbind unix/%s/https.sock\ntls internal\n%s}\n", s.dir, proxySite)
	s.mustLoad(s.fleet(n, "main"), proxySite)
	var below string
	eventually(t, "the certificate of the written site", func() (got bool) {
		serial, err := s.shake("b.shop.example")
		below = serial
		return err == nil
	})
	if serial, err := s.shake("a.shop.example"); err != nil || serial != below {
		t.Error("a name below it has another certificate:", serial, below, err)
	}
	if serial, err := s.shake("shop.example"); err != nil || serial == below {
		t.Error("the apex has no certificate of its own:", serial, err)
	}
	stored := map[string]bool{}
	for _, key := range n.keys() {
		if of, ok := subjectOfKey(key); ok && strings.HasSuffix(key, ".crt") {
			stored[of.lock()] = true
		}
	}
	if len(stored) != 2 || !stored[issuanceLock+"*.shop.example"] || !stored[issuanceLock+"shop.example"] {
		t.Error("the fleet holds", n.keys())
	}
}

// block is the first code block of the README in language that holds text.
func block(t *testing.T, language, text string) []byte {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(readme), "```"+language+"\n")[1:] {
		if code, _, _ := strings.Cut(part, "```"); strings.Contains(code, text) {
			return []byte(code)
		}
	}
	t.Fatal("the README has no such block: ", text)
	return nil
}

// A POST is lost that meets an upstream which closes its connection: workerd and Node do after 5 s, celld after 30 s.
func TestTheExamplesOfTheReadmeCloseUnusedConnectionsBeforeUpstreamsDo(t *testing.T) {
	newStage(t)
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(block(t, "caddyfile", "fleet staging"), nil)
	if err != nil {
		t.Fatal(err)
	}
	closes := regexp.MustCompile(`"keep_alive":\s*\{\s*"idle_timeout":\s*("4s"|4000000000)\s*\}`)
	for _, text := range [][]byte{adapted, block(t, "json", `"apps"`)} {
		if proxies := bytes.Count(text, []byte(`"reverse_proxy"`)); proxies == 0 || len(closes.FindAll(text, -1)) != proxies {
			t.Errorf("%s", text)
		}
	}
}

func TestTheExamplesOfTheReadmeAreValid(t *testing.T) {
	newStage(t)
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(block(t, "caddyfile", "fleet staging"), nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	for _, text := range [][]byte{adapted, block(t, "json", `"apps"`)} {
		var config caddy.Config
		if err := caddy.StrictUnmarshalJSON(text, &config); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(&config); err != nil {
			t.Error(err)
		}
	}
}
