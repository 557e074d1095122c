package scafo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const goodDocument = `{"v":1,"routes":[{"host":"A.x","application":"a","upstreams":[{"node":"n","address":"::::"},{"node":"m","address":"10.0.0.1:80"}]}],` +
	`"api":{"hosts":["dev.example"],"upstreams":[{"node":"n","address":"[fd00::1]:7400"}],"denied":["/v1/storage"]},"later":true}`

func TestABadAddressCostsOnlyItself(t *testing.T) {
	t.Parallel()
	read := tableOf(t, goodDocument)
	if got := read.routes["a.x"].upstreams; !slices.Equal(got, []string{"10.0.0.1:80"}) || read.skipped != 1 {
		t.Error(got, read.skipped)
	}
	if got := read.api["dev.example"].upstreams; !slices.Equal(got, []string{"[fd00::1]:7400"}) {
		t.Error(got)
	}
}

func TestADocumentThatIsCutAnywhereIsRefused(t *testing.T) {
	t.Parallel()
	for end := range len(goodDocument) {
		if _, err := parseDocument([]byte(goodDocument[:end])); err == nil {
			t.Fatal(goodDocument[:end])
		}
	}
	if _, err := parseDocument([]byte(goodDocument + "{")); err == nil {
		t.Error("a document that goes on after its end is taken")
	}
}

func TestAnotherVersionIsRefusedWhole(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2", "0", "1.0", "1.5", `"1"`, "null", "-1", "true"} {
		if _, err := parseDocument([]byte(strings.Replace(goodDocument, `"v":1`, `"v":`+version, 1))); err == nil {
			t.Errorf("v %s is taken", version)
		}
	}
	for _, body := range []string{
		`{"routes":[]}`, `{"V":1,"routes":[]}`, `{"v":1}`, `{"v":1,"routes":null}`, `{"v":1,"routes":{}}`, `{"v":1,"Routes":[]}`, `[]`, `null`, ``,
		`{"v":1,"routes":[{"host":"a","application":"a"}]}`, `{"v":1,"routes":[{"application":"a","upstreams":[]}]}`,
		`{"v":1,"routes":[],"api":{"hosts":["a"],"upstreams":[]}}`, `{"v":1,"routes":[null]}`,
	} {
		if _, err := parseDocument([]byte(body)); err == nil {
			t.Errorf("%s is taken", body)
		}
	}
	for _, body := range []string{`{"v":1,"routes":[]}`, `{"v": 1, "routes": [], "api": null}`} {
		if _, err := parseDocument([]byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestOnlyAddressesCanBeDialled(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"10.0.0.1:1", "[::1]:65535", "node-a.internal:7400"} {
		if !canBeDialled(address) {
			t.Error(address)
		}
	}
	for _, address := range []string{
		"", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", ":80", "10.0.0.1:80-90", "{env.HOME}:80", "unix//run/x", "tcp/10.0.0.1:80",
		"a b:80", "::1:80", "[fe80::1%eth0]:80", "10.0.0.1:+80", "[node]:80", "*.x:80",
	} {
		if canBeDialled(address) {
			t.Error(address)
		}
	}
}

func TestAHostWithoutAnUpstreamDoesNotFallToAWildcard(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t, documentOf(map[string]string{"*.x.example": "127.0.0.1:1", "a.x.example": "nonsense"}, ""))
	if d := decide(fleets, "a.x.example"); d.outcome != found || len(d.target.upstreams) != 0 {
		t.Error(d)
	}
}

// BenchmarkALargeDocument reads 100,000 hosts with three upstreams each.
func BenchmarkALargeDocument(b *testing.B) {
	routes := make(map[string]string, 100_000)
	for i := range 100_000 {
		routes[fmt.Sprintf("application-%d.apps.example.com", i)] = "10.83.0.1:24417,10.83.0.2:24417,10.83.0.3:24417"
	}
	body := []byte(documentOf(routes, "10.83.0.1:7400", "apps.example.com"))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := parseDocument(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkALookup(b *testing.B) {
	routes := make(map[string]string, 100_000)
	for i := range 100_000 {
		routes[fmt.Sprintf("application-%d.apps.example.com", i)] = "10.83.0.1:24417"
	}
	read, err := parseDocument([]byte(documentOf(routes, "10.83.0.1:7400", "apps.example.com")))
	if err != nil {
		b.Fatal(err)
	}
	fleets := []known{{"main", read}}
	b.ReportAllocs()
	for b.Loop() {
		decide(fleets, "application-77777.apps.example.com:443", "/a/b/c")
	}
}
