package scafo

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

const testToken = "an-ingress-token"

// fakeNode is a node as its clients see it: the routing document and the storage protocol, strict about both.
type fakeNode struct {
	t      *testing.T
	server *httptest.Server

	mutex sync.Mutex
	// down breaks every connection, as if there were no node; missed counts the storage requests that met it so.
	down   bool
	missed int
	// routes answers polls; nil refuses as a node does before its first pass.
	routes  http.HandlerFunc
	polls   int
	objects map[string]fakeObject
	locks   map[string]string
	// fail is asked first by storage; a status other than 0 is the answer.
	fail     func(r *http.Request) int
	requests []string
}

type fakeObject struct {
	value    []byte
	modified time.Time
}

func newFakeNode(t *testing.T) *fakeNode {
	n := &fakeNode{t: t, objects: map[string]fakeObject{}, locks: map[string]string{}}
	n.server = httptest.NewServer(http.HandlerFunc(n.serve))
	t.Cleanup(n.server.Close)
	return n
}

func (n *fakeNode) serve(w http.ResponseWriter, r *http.Request) {
	if n.isDown(r) {
		panic(http.ErrAbortHandler)
	}
	if r.Header.Get("Authorization") != "Bearer "+testToken {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "no token")
		return
	}
	if r.URL.Path == "/v1/ingress/routes" {
		n.mutex.Lock()
		n.polls++
		routes := n.routes
		n.mutex.Unlock()
		if routes == nil {
			refuse(w, http.StatusServiceUnavailable, "The fleet's routing is not known yet", "no pass has completed")
			return
		}
		routes(w, r)
		return
	}
	n.serveStorage(w, r)
}

func (n *fakeNode) isDown(r *http.Request) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.down && strings.HasPrefix(r.URL.Path, "/v1/storage/") {
		n.missed++
	}
	return n.down
}

func refuse(w http.ResponseWriter, status int, title, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(problem{"urn:scafo:x", title, status, detail})
}

func (n *fakeNode) serveStorage(w http.ResponseWriter, r *http.Request) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.requests = append(n.requests, r.Method+" "+r.URL.RequestURI())
	if r.Header.Get("X-Scafo-Storage-Version") != "1" {
		refuse(w, http.StatusBadRequest, "Malformed request", "no version")
		return
	}
	if n.fail != nil {
		if status := n.fail(r); status != 0 {
			refuse(w, status, "Refused", "by the test")
			return
		}
	}
	switch key, isObject := strings.CutPrefix(r.URL.Path, "/v1/storage/objects/"); {
	case isObject:
		n.object(w, r, key)
	case r.URL.Path == "/v1/storage/list":
		n.list(w, r.URL.Query().Get("prefix"), r.URL.Query().Get("recursive") == "true")
	case r.URL.Path == "/v1/storage/stat":
		n.stat(w, r.URL.Query().Get("key"))
	default:
		n.lock(w, r, strings.TrimPrefix(r.URL.Path, "/v1/storage/locks/"))
	}
}

func (n *fakeNode) object(w http.ResponseWriter, r *http.Request, key string) {
	object, there := n.objects[key]
	switch r.Method {
	case http.MethodPut:
		value, err := io.ReadAll(r.Body)
		if err != nil {
			n.t.Error(err)
		}
		n.objects[key] = fakeObject{value, time.Now()}
		w.WriteHeader(http.StatusNoContent)
	case http.MethodGet:
		if !there {
			refuse(w, http.StatusNotFound, "Not found", "no such key")
			return
		}
		_, _ = w.Write(object.value)
	case http.MethodDelete:
		below := n.below(key, true)
		if !there && len(below) == 0 {
			refuse(w, http.StatusNotFound, "Not found", "no such key")
			return
		}
		for _, other := range append(below, key) {
			delete(n.objects, other)
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (n *fakeNode) below(prefix string, recursive bool) []string {
	var keys []string
	for key := range n.objects {
		rest, ok := strings.CutPrefix(key, prefix+"/")
		if !ok {
			continue
		}
		if !recursive {
			rest, _, _ = strings.Cut(rest, "/")
		}
		keys = append(keys, prefix+"/"+rest)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (n *fakeNode) list(w http.ResponseWriter, prefix string, recursive bool) {
	keys := n.below(prefix, recursive)
	if len(keys) == 0 {
		refuse(w, http.StatusNotFound, "Not found", "nothing below")
		return
	}
	_ = json.NewEncoder(w).Encode(keys)
}

func (n *fakeNode) stat(w http.ResponseWriter, key string) {
	object, there := n.objects[key]
	if !there && len(n.below(key, true)) == 0 {
		refuse(w, http.StatusNotFound, "Not found", "no such key")
		return
	}
	stat := map[string]any{"key": key, "modified": nil, "size": len(object.value), "isTerminal": there}
	if there {
		stat["modified"] = object.modified.UTC().Format(time.RFC3339Nano)
	}
	_ = json.NewEncoder(w).Encode(stat)
}

func (n *fakeNode) lock(w http.ResponseWriter, r *http.Request, name string) {
	owner, holder := r.Header.Get(ownerHeader), n.locks[name]
	switch {
	case owner == "":
		refuse(w, http.StatusBadRequest, "Malformed request", "no owner")
		return
	case r.Method == http.MethodPost && holder != "" && holder != owner:
		refuse(w, http.StatusConflict, "Conflict", "held elsewhere")
		return
	case r.Method == http.MethodPost:
		n.locks[name] = owner
	case holder == owner:
		delete(n.locks, name)
	}
	w.WriteHeader(http.StatusNoContent)
}

// serveDocument answers polls with body from now on.
func (n *fakeNode) serveDocument(body string) {
	n.answerPolls(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
}

func (n *fakeNode) answerPolls(routes http.HandlerFunc) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.routes = routes
}

// locked runs f with the node's state in hand.
func (n *fakeNode) locked(f func()) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	f()
}

func (n *fakeNode) keys() []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	keys := make([]string, 0, len(n.objects))
	for key := range n.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (n *fakeNode) countRequests(prefix string) int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	count := 0
	for _, request := range n.requests {
		if strings.HasPrefix(request, prefix) {
			count++
		}
	}
	return count
}

func (n *fakeNode) settings(name string) settings {
	return settings{
		name: name, node: n.server.URL, token: testToken, prefer: "self",
		pollInterval: shortestPollInterval, storageTimeout: defaultStorageTimeout,
	}
}

// linkTo is a link whose poller does not run, to documents already there.
func linkTo(t *testing.T, n *fakeNode, name, body string) *link {
	t.Helper()
	s := n.settings(name)
	own := newNode(s)
	l := &link{settings: s, node: own, storage: newRemoteStorage(s, own), logger: currentLog}
	l.storage.locks.poll = time.Millisecond
	if body != "" {
		l.held.Store(tableOf(t, body))
	}
	t.Cleanup(own.client.CloseIdleConnections)
	return l
}

func tableOf(t *testing.T, body string) *table {
	t.Helper()
	read, err := parseDocument([]byte(body))
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return read
}

// documentOf is a document with one route per host=address pair, and the API on the hosts given if it has an address.
func documentOf(routes map[string]string, api string, apiHosts ...string) string {
	type up struct {
		Node    string `json:"node"`
		Address string `json:"address"`
	}
	type route struct {
		Host        string `json:"host"`
		Application string `json:"application"`
		Upstreams   []up   `json:"upstreams"`
	}
	document := map[string]any{"v": 1}
	list := []route{}
	for host, addresses := range routes {
		application, _, _ := strings.Cut(strings.TrimPrefix(host, "*."), ".")
		if strings.HasPrefix(host, "*.") {
			application = "wild"
		}
		r := route{Host: host, Application: application}
		for address := range strings.SplitSeq(addresses, ",") {
			r.Upstreams = append(r.Upstreams, up{"n", address})
		}
		list = append(list, r)
	}
	document["routes"] = list
	if api != "" {
		document["api"] = map[string]any{
			"hosts": apiHosts, "upstreams": []up{{"n", api}}, "denied": []string{"/v1/storage", "/v1/ingress/routes"},
		}
	}
	body, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return string(body)
}

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		if condition() {
			return
		}
	}
	t.Fatal("never came true: " + what)
}

func tokenFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ingress-token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func duration(d time.Duration) caddy.Duration { return caddy.Duration(d) }
