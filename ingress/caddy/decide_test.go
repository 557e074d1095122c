package scafo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddytls"
)

func TestCasePortAndOneTrailingDotDoNotCount(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a.shop.example", "A.SHOP.EXAMPLE", "a.shop.example:8443", "a.shop.example.", "a.shop.example.:80", "a.shop.example:",
	} {
		if h, ok := parseHost(text); !ok || h != "a.shop.example" {
			t.Errorf("%q is read as %q, %v", text, h, ok)
		}
	}
}

func TestWhatNoDocumentCanNameIsNoHost(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", ".", "..", ":80", ".shop.example", "shop.example..", "*.shop.example", "[::1]:80", "::1", "a b", "a/b", "a:b",
		"ä.example", "a%2eb", strings.Repeat("a", 250) + ".example",
	} {
		if h, ok := parseHost(text); ok {
			t.Errorf("%q is read as %q", text, h)
		}
	}
}

var deniedPrefixes = []string{"/v1/storage", "/v1/ingress/routes"}

func TestADeniedPathIsDeniedHoweverItIsSpelled(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/v1/storage", "/v1/storage/", "/v1/storage/objects/x", "/v1//storage", "//v1/storage", "/v1/./storage",
		"/v1/x/../storage", "/v1/storage/../applications", "/../v1/storage", "/v1/%73torage", "/v1/%2573torage",
		"/v1%2Fstorage%2fobjects", "/v1/%2e%2e/v1/storage", `/v1\storage`, "/v1/%5cstorage", "/v1/ingress/routes/traefik",
		"/v1/ingress%2Froutes", "/v1/%%373torage", "/v1/%7%33torage", "/v1/%" + strings.Repeat("25", 30_000) + "73torage",
	} {
		if !deniedInAnySpelling(path, deniedPrefixes) {
			t.Errorf("%.80s is not denied", path)
		}
	}
	for _, path := range []string{
		"/", "*", "", "/v1/storagex", "/v1/storag", "/v1/ingress", "/x/v1/storage", "/v1/storage%zz", "/v1/stor%61gex", "/V1/storage",
	} {
		if deniedInAnySpelling(path, deniedPrefixes) {
			t.Errorf("%s is denied", path)
		}
	}
}

func TestNoSpellingGetsPast(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	spellings := []string{"%%%02x", "%%%02X", "%%25%02x", "%c", "%c"}
	separators := []string{"/", "//", `\`, "/./", "/x/../", "/a/b/../../"}
	for range 20_000 {
		var path strings.Builder
		path.WriteString("/")
		for i, segment := range strings.Split(deniedPrefixes[random.IntN(2)], "/")[1:] {
			plain := segment
			if i > 0 {
				plain = separators[random.IntN(len(separators))] + segment
			}
			for _, c := range []byte(plain) {
				fmt.Fprintf(&path, spellings[random.IntN(len(spellings))], c)
			}
		}
		path.WriteString([]string{"", "/", "/objects/x", "//"}[random.IntN(4)])
		if !deniedInAnySpelling(path.String(), deniedPrefixes) {
			t.Fatalf("%s is not denied (seed %d)", path.String(), seed)
		}
	}
}

func fleetsOf(t *testing.T, bodies ...string) []known {
	fleets := make([]known, len(bodies))
	for i, body := range bodies {
		fleets[i].fleet = fmt.Sprintf("fleet-%d", i)
		if body != "" {
			fleets[i].table = tableOf(t, body)
		}
	}
	return fleets
}

// row is a request and what becomes of it: an outcome, or the application that it goes to, api for the API.
type row struct{ host, path, expected string }

func checkRows(t *testing.T, fleets []known, rows ...row) {
	t.Helper()
	for _, r := range rows {
		d := decide(fleets, r.host, r.path)
		got := string(d.outcome)
		if d.outcome == found {
			if got = d.target.application; got == "" {
				got = "api"
			}
		}
		if got != r.expected {
			t.Errorf("%s %s: %s, not %s", r.host, r.path, got, r.expected)
		}
	}
}

func TestAHostThatNobodyServesReachesNobody(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t, documentOf(map[string]string{"shop.dev.example": "127.0.0.1:1"}, "127.0.0.1:2", "dev.example"))
	for _, host := range []string{
		"blog.dev.example", "localhost", "127.0.0.1", "[::1]", "", "example", "shop.dev.example.evil.example",
	} {
		checkRows(t, fleets, row{host, "/", "unknown"})
	}
}

func TestAWildcardCoversOneLabelAndNeverAnExactHost(t *testing.T) {
	t.Parallel()
	base := strings.Repeat("b", 52) + ".example"
	fleets := fleetsOf(t, documentOf(map[string]string{
		"*.shop.example": "127.0.0.1:1", "a.shop.example": "127.0.0.1:1", "*." + base: "127.0.0.1:1", "a." + base: "127.0.0.1:1",
	}, ""))
	checkRows(t, fleets,
		row{"a.shop.example", "/", "a"}, row{"A.SHOP.EXAMPLE", "/", "a"}, row{"a.shop.example:8443", "/", "a"},
		row{"a.shop.example.", "/", "a"}, row{"b.shop.example", "/", "wild"}, row{"a.b.shop.example", "/", "unknown"},
		row{".shop.example", "/", "unknown"}, row{"shop.example", "/", "unknown"}, row{"*.shop.example", "/", "unknown"},
		row{"a." + base, "/", "a"}, row{"c." + base, "/", "wild"},
	)
}

func TestADeniedPathIsDeniedOnTheAPIHostOnly(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t, documentOf(map[string]string{"apex.example": "127.0.0.1:1", "*.example": "127.0.0.1:1"},
		"127.0.0.1:2", "dev.example", "apex.example"))
	checkRows(t, fleets,
		row{"dev.example", "/v1/applications", "api"}, row{"dev.example", "/v1/storage", "denied"},
		row{"DEV.example.:80", "/v1//ingress/%72outes/x", "denied"}, row{"apex.example", "/v1/storage", "apex"},
		row{"other.example", "/v1/storage", "wild"},
	)
	if d := decide(fleets, "dev.example", "/harmless", "/v1/storage"); d.outcome != isDenied {
		t.Error("a path that was rewritten to a denied one is not denied")
	}
}

func TestAnExactHostOfALaterFleetWinsOverAWildcardOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t,
		documentOf(map[string]string{"*.x.example": "127.0.0.1:1"}, ""),
		documentOf(map[string]string{"a.x.example": "127.0.0.1:1", "*.x.example": "127.0.0.1:3"}, ""))
	checkRows(t, fleets, row{"a.x.example", "/", "a"})
	if d := decide(fleets, "b.x.example"); d.fleet != "fleet-0" {
		t.Error("the wildcard of the first fleet does not win")
	}
}

func TestAFleetNotHeardFromMakesAnUnknownHostUnavailable(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t, "", documentOf(map[string]string{"a.example": "127.0.0.1:1"}, ""))
	checkRows(t, fleets, row{"a.example", "/", "a"}, row{"b.example", "/", "unavailable"}, row{"*.example", "/", "unknown"})
}

// A start waits for the first polls; a fleet that stays silent then takes no host from the others.
func TestAWildcardIsUsedWhileAnotherFleetIsSilentAndGivesWayToAnExactHost(t *testing.T) {
	t.Parallel()
	wild, exact := documentOf(map[string]string{"*.x.example": "127.0.0.1:1"}, ""), documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")
	checkRows(t, fleetsOf(t, wild, ""), row{"a.x.example", "/", "wild"})
	checkRows(t, fleetsOf(t, wild, exact), row{"a.x.example", "/", "a"}, row{"b.x.example", "/", "wild"})
}

func TestLookupsFollowTheProtocol(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	name := func(labels int) string {
		parts := make([]string, labels)
		for i := range parts {
			parts[i] = []string{"a", "b"}[random.IntN(2)]
		}
		return strings.Join(parts, ".")
	}
	for range 5_000 {
		keys := map[string]string{}
		for range 1 + random.IntN(8) {
			key := name(1 + random.IntN(3))
			if random.IntN(3) == 0 {
				key = "*." + key
			}
			keys[key] = "127.0.0.1:1"
		}
		asked := name(1 + random.IntN(4))
		_, known := keys[asked]
		if _, base, ok := strings.Cut(asked, "."); ok && !known {
			_, known = keys["*."+base]
		}
		spelled := strings.ToUpper(asked) + []string{"", ".", ":80", ".:443"}[random.IntN(4)]
		if d := decide(fleetsOf(t, documentOf(keys, "")), spelled); (d.outcome == found) != known {
			t.Fatalf("%s in %v: %s (seed %d)", spelled, keys, d.outcome, seed)
		}
	}
}

func TestOnlyExactNamesGetACertificate(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t,
		documentOf(map[string]string{"*.shop.example": "127.0.0.1:1", "a.shop.example": "127.0.0.1:1"}, "127.0.0.1:2", "dev.example"),
		documentOf(map[string]string{"blog.example": "127.0.0.1:1"}, ""))
	for _, name := range []string{"a.shop.example", "A.shop.example", "dev.example", "blog.example"} {
		if err := permitted(fleets, name); err != nil {
			t.Error(err)
		}
	}
	refused := []string{
		"shop.example", "*.shop.example", "", "127.0.0.1", "a.a.shop.example", "a.shop.example:443", "a.shop.example.", "x.dev.example",
	}
	for i := range 10_000 {
		refused = append(refused, fmt.Sprintf("stranger-%d.shop.example", i))
	}
	for _, name := range refused {
		if err := permitted(fleets, name); !errors.Is(err, caddytls.ErrPermissionDenied) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := permitted(fleetsOf(t, ""), "a.shop.example"); !errors.Is(err, caddytls.ErrPermissionDenied) {
		t.Error("a name is permitted before any document")
	}
}

func TestAFailedUpstreamIsTriedLastUntilItsMarkIsOverOrItAnswers(t *testing.T) {
	t.Parallel()
	m, now, all := &marks{until: map[string]time.Time{}}, time.Now(), []string{"a", "b", "c"}
	expect := func(tried []string, at time.Time, expected string) {
		t.Helper()
		if got := m.next(all, tried, at); got != expected {
			t.Errorf("after %v: %s, not %s", tried, got, expected)
		}
	}
	expect(nil, now, "a")
	expect([]string{"a"}, now, "b")
	expect([]string{"a", "b", "c"}, now, "a")
	m.set("a", now)
	expect(nil, now, "b")
	expect([]string{"b", "c"}, now, "a")
	m.set("b", now.Add(markedFor/2))
	expect(nil, now.Add(markedFor/2), "c")
	expect([]string{"c"}, now.Add(markedFor/2), "a")
	expect(nil, now.Add(markedFor), "a")
	m.clear("b")
	m.clear("a")
	expect(nil, now, "a")
	if m.set("a", now); m.next([]string{"a"}, nil, now) != "a" {
		t.Error("a mark left out the only upstream")
	}
}
