package scafo

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestKeysNameTheirSubject(t *testing.T) {
	t.Parallel()
	const authority = "acme-v02.api.letsencrypt.org-directory"
	for key, expected := range map[string]string{
		"certificates/" + authority + "/a.x.example/a.x.example.crt": "a.x.example",
		"certificates/" + authority + "/a.x.example":                 "a.x.example",
		"certificates/" + authority + "/wildcard_.x.example/x.key":   "*.x.example",
		"certificates/" + authority:                                  "",
		"certificates":                                               "",
		"ocsp/a-b.example-1f2e3d":                                    "a-b.example",
		"ocsp/wildcard_.x.example-1f2e3d":                            "*.x.example",
		"ocsp/1f2e3d":                                                "",
		"acme/" + authority + "/challenge_tokens/a.x.example.json":   "a.x.example",
		"acme/" + authority + "/users/me@a.x.example/me.json":        "",
		"acme/" + authority + "/users/me@a.x.example":                "",
		"pki/authorities/local/root.crt":                             "",
		"last_clean.json":                                            "",
		"":                                                           "",
		"certificates/" + authority + "/..":                          "",
	} {
		got, ok := subjectOfKey(key)
		text := string(got.host)
		if got.wildcard {
			text = "*." + text
		}
		if !ok {
			text = ""
		}
		if text != expected {
			t.Errorf("%s names %q, not %q", key, text, expected)
		}
	}
	for name, expected := range map[string]subject{
		"issue_cert_a.x.example": {"a.x.example", false}, "issue_cert_*.x.example": {"x.example", true},
		"storage_clean": {}, "ari_x.y": {}, "": {},
	} {
		if got, _ := subjectOfLock(name); got != expected {
			t.Errorf("lock %s names %v", name, got)
		}
	}
}

// The layout is CertMagic's own; this notices a change of it.
func TestKeysOfCertMagicNameTheirSubject(t *testing.T) {
	t.Parallel()
	keys := certmagic.StorageKeys
	for _, name := range []string{"a-b.x.example", "*.x.example"} {
		of, _ := subjectOfLock(issuanceLock + name)
		staple := keys.OCSPStaple(&certmagic.Certificate{Names: []string{name}}, []byte("bundle"))
		for _, key := range []string{keys.SiteCert("i", name), keys.SitePrivateKey("i", name), keys.SiteMeta("i", name), staple} {
			if got, ok := subjectOfKey(key); !ok || got != of {
				t.Errorf("%s names %v, not %v", key, got, of)
			}
		}
	}
}

func TestASubjectLivesInTheFleetThatNamesIt(t *testing.T) {
	t.Parallel()
	fleets := fleetsOf(t,
		documentOf(map[string]string{"*.shop.example": "127.0.0.1:1"}, "127.0.0.1:2", "dev.example"),
		documentOf(map[string]string{"a.shop.example": "127.0.0.1:1", "blog.dev.example": "127.0.0.1:1"}, ""))
	for name, expected := range map[string]int{
		"a.shop.example": 1, "blog.dev.example": 1, "dev.example": 0, "*.shop.example": 0, "*.dev.example": 0,
		"shop.example": -1, "b.shop.example": -1, "own.example": -1, "*.a.shop.example": -1,
	} {
		of, _ := subjectOfLock(issuanceLock + name)
		where, i := homeOf(fleets, of)
		if where == homeLocal {
			i = -1
		}
		if where == homeUnknown || i != expected {
			t.Errorf("%s lives at %v %d, not %d", name, where, i, expected)
		}
	}
	if where, _ := homeOf(append(fleets, known{}), subject{host: "own.example"}); where != homeUnknown {
		t.Error("a subject is local although a fleet was not heard from")
	}
}

const (
	ourKey   = "certificates/ca/a.x.example/a.x.example.crt"
	otherKey = "certificates/ca/own.example/own.example.crt"
)

func storageOver(t *testing.T, nodes ...*fakeNode) *storage {
	var links []*link
	for i, n := range nodes {
		name := fmt.Sprintf("%c", 'a'+i)
		links = append(links, linkTo(t, n, name, documentOf(map[string]string{name + ".x.example": "127.0.0.1:1"}, "")))
	}
	return newStorage(links, &certmagic.FileStorage{Path: t.TempDir()})
}

func TestStorageKeepsWhatCertMagicExpects(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := storageOver(t, n)
	value := []byte{0, 1, 0xff, '\n'}
	before := time.Now().Add(-time.Second)
	for range 2 {
		if err := s.Store(ctx, ourKey, value); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Load(ctx, ourKey); err != nil || !bytes.Equal(got, value) {
		t.Error(got, err)
	}
	if info, err := s.Stat(ctx, ourKey); err != nil || info.Key != ourKey || info.Size != 4 || !info.IsTerminal || info.Modified.Before(before) {
		t.Error(info, err)
	}
	if info, err := s.Stat(ctx, "certificates/ca/a.x.example"); err != nil || info.IsTerminal || !info.Modified.IsZero() || info.Size != 0 {
		t.Error(info, err)
	}
	if keys, err := s.List(ctx, "certificates/ca/a.x.example", true); err != nil || !slices.Equal(keys, []string{ourKey}) {
		t.Error(keys, err)
	}
	if !s.Exists(ctx, ourKey) || !s.Exists(ctx, "certificates/ca/a.x.example") || s.Exists(ctx, ourKey+"x") {
		t.Error("existence is wrong")
	}
	if err := s.Delete(ctx, "certificates/ca/a.x.example"); err != nil {
		t.Error(err)
	}
	if err := s.Delete(ctx, ourKey); err != nil {
		t.Error("a missing key is an error to delete:", err)
	}
	if _, err := s.Load(ctx, ourKey); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := s.Stat(ctx, ourKey); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := s.List(ctx, "certificates/ca/a.x.example", false); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestWhatNamesNoDomainOfAFleetStaysOnThisDisk(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := storageOver(t, n)
	for _, key := range []string{"acme/ca/users/me@a.x.example/me.json", "last_clean.json", "pki/authorities/local/root.key", otherKey} {
		if err := s.Store(ctx, key, []byte("v")); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Load(ctx, key); err != nil || string(got) != "v" {
			t.Error(key, err)
		}
	}
	if keys := n.keys(); len(keys) != 0 {
		t.Error("the fleet got", keys)
	}
	if keys, err := s.List(ctx, "acme/ca/users", false); err != nil || !slices.Equal(keys, []string{"acme/ca/users/me@a.x.example"}) {
		t.Error(keys, err)
	}
	if n.countRequests("") != 0 {
		t.Error("a fleet was asked:", n.requests)
	}
}

func TestEachFleetGetsItsOwnDomains(t *testing.T) {
	t.Parallel()
	first, second, ctx := newFakeNode(t), newFakeNode(t), t.Context()
	s := storageOver(t, first, second)
	bKey := "certificates/ca/b.x.example/b.x.example.crt"
	for _, key := range []string{ourKey, bKey, otherKey} {
		if err := s.Store(ctx, key, []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := first.keys(), second.keys(); !slices.Equal(a, []string{ourKey}) || !slices.Equal(b, []string{bKey}) {
		t.Error(a, b)
	}
	expected := []string{"certificates/ca/a.x.example", "certificates/ca/b.x.example", "certificates/ca/own.example"}
	if keys, err := s.List(ctx, "certificates/ca", false); err != nil || !slices.Equal(keys, expected) {
		t.Error(keys, err)
	}
	second.locked(func() { second.fail = func(*http.Request) int { return http.StatusServiceUnavailable } })
	if keys, err := s.List(ctx, "certificates/ca", false); err == nil {
		t.Error("a listing without one fleet passes for whole:", keys)
	}
	// What a fleet kept for an application that is gone can still be read and cleaned up.
	goneKey := "certificates/ca/gone.example/gone.example.crt"
	first.locked(func() { first.objects[goneKey] = fakeObject{value: []byte("old")} })
	if got, err := s.Load(ctx, goneKey); err != nil || string(got) != "old" {
		t.Error(got, err)
	}
	second.locked(func() { second.fail = nil })
	if err := s.Delete(ctx, goneKey); err != nil || slices.Contains(first.keys(), goneKey) {
		t.Error("it is still there:", err)
	}
}

func TestAMissingDocumentIsNoMissingCertificate(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	l := linkTo(t, n, "a", "")
	s := newStorage([]*link{l}, &certmagic.FileStorage{Path: t.TempDir()})
	if _, err := s.Load(ctx, ourKey); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := s.Store(ctx, ourKey, nil); !errors.Is(err, errHomeUnknown) {
		t.Error(err)
	}
	if err := s.Lock(ctx, "issue_cert_a.x.example"); !errors.Is(err, errHomeUnknown) {
		t.Error(err)
	}
	if err := s.Store(ctx, "acme/ca/users/me/me.json", nil); err != nil {
		t.Error("the account waits for a fleet:", err)
	}
}

// CertMagic orders a certificate that does not exist.
func TestACertificateIsTakenToExistWhileItsNodeFails(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := storageOver(t, n)
	for status, exists := range map[int]bool{
		401: true, 403: true, 429: true, 500: true, 503: true, 504: true,
		// Nothing there; a key that the node does not take; a damaged value.
		404: false, 400: false, 502: false,
	} {
		n.locked(func() { n.fail = func(*http.Request) int { return status } })
		if got := s.Exists(ctx, ourKey); got != exists {
			t.Errorf("%d: %t", status, got)
		}
	}
	n.locked(func() { n.fail = nil })
	if s.Exists(ctx, ourKey) {
		t.Error("what is not there exists")
	}
	n.locked(func() { n.down = true })
	if !s.Exists(ctx, ourKey) {
		t.Error("it looks as if it were not there while the node is away")
	}
	unknown := newStorage([]*link{linkTo(t, n, "a", "")}, &certmagic.FileStorage{Path: t.TempDir()})
	if !unknown.Exists(ctx, ourKey) {
		t.Error("it looks as if it were not there before the first document")
	}
}

func TestAFailureIsReportedAtOnceAndIsNotAMissingKey(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := storageOver(t, n)
	for _, status := range []int{400, 401, 403, 409, 500, 503} {
		n.locked(func() { n.fail = func(*http.Request) int { return status }; n.requests = nil })
		_, loadErr := s.Load(ctx, ourKey)
		_, statErr := s.Stat(ctx, ourKey)
		_, listErr := s.List(ctx, "certificates/ca/a.x.example", true)
		for _, err := range []error{s.Store(ctx, ourKey, nil), s.Delete(ctx, ourKey), loadErr, statErr, listErr} {
			if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "Refused: by the test") {
				t.Errorf("%d: %v", status, err)
			}
		}
		if n.countRequests("") != 5 {
			t.Error("something was tried twice:", n.requests)
		}
	}
}

func TestAnOutageOfTheStorageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	core, logs := observer.New(zap.InfoLevel)
	r := linkTo(t, n, "a", "").storage
	r.logger = func() *zap.Logger { return zap.New(core) }
	expect := func(what string, expected int) {
		t.Helper()
		if logs.Len() != expected {
			t.Errorf("%s: %v", what, logs.All())
		}
		logs.TakeAll()
	}
	_, _ = r.Load(ctx, ourKey)
	n.locked(func() { n.locks[lockName] = "somebody" })
	_, _ = r.locks.try(ctx, lockName)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, _ = r.Load(gone, ourKey)
	expect("what is no fault", 0)
	n.locked(func() { n.fail = func(*http.Request) int { return http.StatusNotFound } })
	for range 3 {
		if err := r.Store(ctx, ourKey, nil); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Error("a store that found no storage:", err)
		}
	}
	expect("an outage", 1)
	n.locked(func() { n.fail = nil })
	_, _ = r.Load(ctx, ourKey)
	expect("its end", 1)
}

func TestARequestEndsWithTheStorageTimeout(t *testing.T) {
	t.Parallel()
	for what, begin := range map[string]func(http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
		"half an answer": func(w http.ResponseWriter) {
			_, _ = w.Write([]byte("half"))
			w.(http.Flusher).Flush()
		},
	} {
		hung := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			<-r.Context().Done()
		}))
		defer hung.Close()
		s := settings{node: hung.URL, token: testToken, storageTimeout: 20 * time.Millisecond}
		value, err := newRemoteStorage(s, newNode(s)).Load(t.Context(), ourKey)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fs.ErrNotExist) || value != nil {
			t.Error(what, value, err)
		}
	}
}

var filesOfOurs = []string{
	"certificates/ca/a.x.example/a.x.example.key", ourKey, "certificates/ca/a.x.example/a.x.example.json",
}

func expectFiles(t *testing.T, s *storage, value string) {
	t.Helper()
	for _, key := range filesOfOurs {
		if got, err := s.Load(t.Context(), key); err != nil || string(got) != value {
			t.Errorf("%s is %q: %v", key, got, err)
		}
	}
}

func TestWhatIsStoredUnderAnIssuanceLockStaysTogetherAlthoughTheDocumentChanges(t *testing.T) {
	t.Parallel()
	named, unnamed := documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, ""), documentOf(nil, "")
	for what, documents := range map[string][3]string{
		"it leaves the document and comes back": {named, unnamed, named}, "it comes into the document": {unnamed, named, named},
	} {
		n, ctx := newFakeNode(t), t.Context()
		l := linkTo(t, n, "a", documents[0])
		s := newStorage([]*link{l}, &certmagic.FileStorage{Path: t.TempDir()})
		if err := s.Lock(ctx, lockName); err != nil {
			t.Fatal(err)
		}
		for i, key := range filesOfOurs {
			if err := s.Store(ctx, key, []byte("v")); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				l.hold(tableOf(t, documents[1]))
			}
		}
		if keys := n.keys(); len(keys) != 0 && len(keys) != len(filesOfOurs) {
			t.Error(what, "and the fleet has only", keys)
		}
		expectFiles(t, s, "v")
		if err := s.Unlock(ctx, lockName); err != nil {
			t.Fatal(what, err)
		}
		l.hold(tableOf(t, documents[2]))
		// Where it was stored on this disk it is moved, and then an ingress with an empty disk has it too.
		expectFiles(t, s, "v")
		expectFiles(t, storageOver(t, n), "v")
		n.locked(func() {
			if len(n.locks) != 0 || len(s.pinned) != 0 || len(s.held) != 0 {
				t.Error(what, "and something is still held:", n.locks, s.pinned, s.held)
			}
		})
	}
}

func TestACertificateFromBeforeItsNameWasServedMovesToTheFleetAsAWhole(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	l := linkTo(t, n, "a", documentOf(nil, ""))
	s := newStorage([]*link{l}, &certmagic.FileStorage{Path: t.TempDir()})
	staple := "ocsp/a.x.example-1f2e"
	for _, key := range append([]string{staple}, filesOfOurs...) {
		if err := s.Store(ctx, key, []byte("old")); err != nil {
			t.Fatal(err)
		}
	}
	l.hold(tableOf(t, documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")))
	site := "certificates/ca/a.x.example"
	if keys, err := s.List(ctx, site, false); err != nil || len(keys) != 3 {
		t.Error(keys, err)
	}
	// While somebody issues it anew, the files here must not be mixed with theirs.
	n.locked(func() { n.locks[lockName] = "somebody" })
	if _, err := s.Load(ctx, ourKey); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it is read beside an issuance:", err)
	}
	n.locked(func() { delete(n.locks, lockName) })
	// A node that takes no writes keeps nobody from serving what is here.
	n.locked(func() {
		n.fail = func(r *http.Request) (status int) {
			if r.Method == http.MethodPut {
				status = http.StatusServiceUnavailable
			}
			return status
		}
	})
	expectFiles(t, s, "old")
	n.locked(func() { n.fail = nil })
	expectFiles(t, s, "old")
	if _, err := s.local.Stat(ctx, site); !errors.Is(err, fs.ErrNotExist) {
		t.Error("there are two copies now:", err)
	}
	if got, err := s.Load(ctx, staple); err != nil || string(got) != "old" {
		t.Error("the staple:", err)
	}
	expectFiles(t, storageOver(t, n), "old")
	if len(n.keys()) != 3 || len(n.locks) != 0 {
		t.Error(n.keys(), n.locks)
	}
}

// expiring is a certificate in PEM that ends at the time given.
func expiring(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-time.Hour), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCleaningAnExpiredCopyLeavesTheNewerOneElsewhere(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := newStorage([]*link{linkTo(t, n, "a", documentOf(nil, ""))}, &certmagic.FileStorage{Path: t.TempDir()})
	old, fresh := expiring(t, time.Now().AddDate(0, -2, 0)), expiring(t, time.Now().AddDate(0, 2, 0))
	for _, key := range filesOfOurs {
		if err := s.local.Store(ctx, key, old); err != nil {
			t.Fatal(err)
		}
		n.objects[key] = fakeObject{value: fresh}
	}
	core, logs := observer.New(zap.WarnLevel)
	clean := func() {
		t.Helper()
		options := certmagic.CleanStorageOptions{Logger: zap.New(core), OCSPStaples: true, ExpiredCerts: true}
		if err := certmagic.CleanStorage(ctx, s, options); err != nil {
			t.Fatal(err)
		}
		if logs.Len() != 0 {
			t.Error(logs.TakeAll())
		}
	}
	clean()
	if _, err := s.local.Stat(ctx, ourKey); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the expired copy is still there:", err)
	}
	expectFiles(t, s, string(fresh))
	// When it has expired too, it goes as well.
	n.locked(func() {
		for _, key := range filesOfOurs {
			n.objects[key] = fakeObject{value: old}
		}
	})
	clean()
	if keys := n.keys(); len(keys) != 0 {
		t.Error("the fleet still holds", keys)
	}
	empty := s.local.(*certmagic.FileStorage).Filename("certificates/ca/a.x.example")
	if err := os.MkdirAll(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	clean()
	if _, err := os.Stat(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Error("an empty directory stays:", err)
	}
}

// refusing answers 503 to requests of that method for keys that end so.
func refusing(method, end string) func(*http.Request) int {
	return func(r *http.Request) (status int) {
		if r.Method == method && strings.HasSuffix(r.URL.Path, end) {
			status = http.StatusServiceUnavailable
		}
		return status
	}
}

func TestAMoveThatBreaksOffIsMadeAgainAndLosesNoFile(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{".key", ".json", ".crt"} {
		n, ctx := newFakeNode(t), t.Context()
		s := storageOver(t, n)
		for _, key := range filesOfOurs {
			if err := s.local.Store(ctx, key, []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
		n.locked(func() { n.fail = refusing(http.MethodPut, refused) })
		for range 2 {
			expectFiles(t, s, "v")
		}
		n.locked(func() { n.fail = nil })
		expectFiles(t, s, "v")
		expectFiles(t, storageOver(t, n), "v")
	}
}

// Go repeats no PUT, POST or DELETE that meets a connection that the node has just closed.
func TestAnIdleConnectionIsClosedHereBeforeTheNodeClosesIt(t *testing.T) {
	t.Parallel()
	const nodeCloses = 30 * time.Second
	transport := newNode(settings{}).client.Transport.(*http.Transport)
	if idle := transport.IdleConnTimeout; idle <= 0 || idle > nodeCloses-5*time.Second {
		t.Errorf("connections are kept for %s, and the node closes them after %s", idle, nodeCloses)
	}
}

func TestKeysAreEncodedPerComponent(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	r := linkTo(t, n, "a", "").storage
	key := `a b/c%2Fd/e?f#g/[h]+&=;"*`
	if err := r.Store(ctx, key, []byte("v")); err != nil {
		t.Fatal(err)
	}
	if keys := n.keys(); !slices.Equal(keys, []string{key}) {
		t.Error(keys)
	}
	if info, err := r.Stat(ctx, key); err != nil || info.Key != key || info.Size != 1 {
		t.Error(info, err)
	}
	if keys, err := r.List(ctx, "a b/c%2Fd", true); err != nil || !slices.Equal(keys, []string{key}) {
		t.Error(keys, err)
	}
	if n.countRequests(`PUT /v1/storage/objects/a%20b/c%252Fd/e%3Ff%23g/%5Bh%5D`) != 1 {
		t.Error(n.requests)
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", "../x", "a/./b", "a/..", "ä", "a\x00b", "a\nb"} {
		if err := r.Store(ctx, bad, nil); err == nil {
			t.Errorf("%q is sent", bad)
		}
	}
}

const lockName = "issue_cert_a.x.example"

func TestTwoLockersNeverHoldALockAtOnce(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	// Two processes, each with two callers: links have an owner each, as processes do.
	stores := []*storage{storageOver(t, n), storageOver(t, n)}
	counter, inside := 0, 0
	var mutex sync.Mutex
	enter := func(by int) {
		mutex.Lock()
		defer mutex.Unlock()
		if inside += by; inside > 1 {
			t.Error("two hold the lock")
		}
	}
	var all sync.WaitGroup
	for i := range 4 {
		s := stores[i%2]
		all.Go(func() {
			for range 25 {
				if err := s.Lock(t.Context(), lockName); err != nil {
					t.Error(err)
					return
				}
				enter(1)
				counter++ // the race detector watches this
				enter(-1)
				if err := s.Unlock(t.Context(), lockName); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if counter != 100 || len(n.locks) != 0 {
		t.Error(counter, n.locks)
	}
}

func TestLockWaitsOnlyForALockThatIsTaken(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	n.locked(func() { n.locks[lockName] = "somebody" })
	if got, err := s.TryLock(t.Context(), lockName); got || err != nil {
		t.Error(got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Lock(ctx, lockName) }()
	eventually(t, "three tries", func() bool { return n.countRequests("POST") > 3 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for _, status := range []int{400, 401, 500, 503} {
		n.locked(func() { n.fail = func(*http.Request) int { return status } })
		if err := s.Lock(t.Context(), lockName); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", status, err)
		}
	}
	n.locked(func() { n.fail = nil; delete(n.locks, lockName) })
	if got, err := s.TryLock(t.Context(), lockName); !got || err != nil {
		t.Error("a failed try keeps the lock from being taken:", got, err)
	}
	if err := s.Unlock(t.Context(), lockName); err != nil {
		t.Error(err)
	}
	if err := s.Unlock(t.Context(), lockName); err == nil {
		t.Error("a lock that is not held was released")
	}
}

func TestTheStorageTimeoutDoesNotBoundTheWaitForALock(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	remote := s.links[0].storage
	remote.timeout = time.Second
	n.locked(func() { n.locks[lockName] = "somebody" })
	ended, began := make(chan error, 1), time.Now()
	go func() { ended <- s.Lock(t.Context(), lockName) }()
	eventually(t, "a wait that is longer", func() bool { return time.Since(began) > remote.timeout+remote.timeout/2 })
	select {
	case err := <-ended:
		t.Fatal("it did not wait:", err)
	default:
	}
	n.locked(func() { delete(n.locks, lockName) })
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Unlock(t.Context(), lockName); err != nil {
		t.Error(err)
	}
}

func TestAHeldLockGivesSignsOfLifeUntilItIsReleased(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	s.links[0].storage.locks.refresh = time.Millisecond
	if err := s.Lock(t.Context(), lockName); err != nil {
		t.Fatal(err)
	}
	eventually(t, "signs of life", func() bool { return n.countRequests("POST") > 3 })
	// A node that has lost the lock altogether gets it from the next one.
	n.locked(func() { clear(n.locks) })
	eventually(t, "the lock at the node", func() bool {
		held := false
		n.locked(func() { held = n.locks[lockName] != "" })
		return held
	})
	n.locked(func() { n.fail = func(*http.Request) int { return http.StatusServiceUnavailable } })
	if err := s.Unlock(t.Context(), lockName); err == nil {
		t.Error("a release that failed passes")
	}
	if len(s.pinned) != 0 {
		t.Error("the keys of a lock that is not released stay where it was:", s.pinned)
	}
	n.locked(func() { n.fail = nil })
	if err := s.Unlock(t.Context(), lockName); err != nil {
		t.Error("a failed release cannot be tried again:", err)
	}
	n.locked(func() {
		if last := n.requests[len(n.requests)-1]; !strings.HasPrefix(last, "DELETE") || len(n.locks) != 0 {
			t.Error("after the release came", last, n.locks)
		}
	})
}

// A release that failed is tried again when the process ends, perhaps while another caller asks for that lock.
func TestASecondReleaseLeavesTheLockToWhoeverAsksForItByThen(t *testing.T) {
	t.Parallel()
	n, ctx := newFakeNode(t), t.Context()
	s := storageOver(t, n)
	locks := s.links[0].storage.locks
	if err := s.Lock(ctx, lockName); err != nil {
		t.Fatal(err)
	}
	n.locked(func() { n.fail = func(*http.Request) int { return http.StatusServiceUnavailable } })
	if err := s.Unlock(ctx, lockName); err == nil {
		t.Error("a release that failed passes")
	}
	asked := &keeper{stop: func() {}, stopped: make(chan struct{})}
	if !locks.reserve(lockName, asked) {
		t.Fatal("a lock whose release failed is kept from everybody here")
	}
	n.locked(func() { n.fail, n.requests = nil, nil })
	if err := s.Unlock(ctx, lockName); err != nil || n.countRequests("") != 0 {
		t.Error(err, n.requests)
	}
	locks.forget(lockName)
	// Who has taken it by then holds it until they release it themselves.
	if err := s.Lock(ctx, lockName); err != nil {
		t.Fatal(err)
	}
	s.keep(lockName, place{home: homeLocal})
	if at := s.held[lockName]; at.home != homeFleet {
		t.Error("a release that failed late changes where the next holder's lock is")
	}
	if err := s.Unlock(ctx, lockName); err != nil || len(n.locks) != 0 {
		t.Error(err, n.locks)
	}
}

// endOfKeeping is closed with the last sign of life for the lock.
func endOfKeeping(locks *locks) <-chan struct{} {
	locks.mutex.Lock()
	defer locks.mutex.Unlock()
	return locks.taken[lockName].stopped
}

func TestALostLockIsNotTakenBack(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	locks := s.links[0].storage.locks
	core, logs := observer.New(zap.WarnLevel)
	s.links[0].storage.logger = func() *zap.Logger { return zap.New(core) }
	locks.refresh = time.Millisecond
	if err := s.Lock(t.Context(), lockName); err != nil {
		t.Fatal(err)
	}
	ended := endOfKeeping(locks)
	n.locked(func() { n.locks[lockName] = "somebody" })
	<-ended
	if logs.FilterMessageSnippet("was lost").Len() != 1 {
		t.Error("nobody hears of it:", logs.All())
	}
	if err := s.Unlock(t.Context(), lockName); err != nil {
		t.Error(err)
	}
	n.locked(func() {
		if n.locks[lockName] != "somebody" {
			t.Error("somebody else's lock was released")
		}
	})
}

// A node that was started again refuses a lock that it does not know to be alive, also to its holder.
func TestASignOfLifeThatIsRefusedIsTheLast(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	locks := s.links[0].storage.locks
	locks.refresh = time.Millisecond
	if err := s.Lock(t.Context(), lockName); err != nil {
		t.Fatal(err)
	}
	ended := endOfKeeping(locks)
	n.locked(func() { n.fail = func(*http.Request) int { return http.StatusConflict } })
	<-ended
	n.locked(func() { n.fail, n.requests = nil, nil; clear(n.locks) })
	if got, err := s.TryLock(t.Context(), lockName); got || err != nil {
		t.Error("two in this process hold it:", got, err)
	}
	if n.countRequests("") != 0 {
		t.Error("after it came", n.requests)
	}
	if err := s.Unlock(t.Context(), lockName); err != nil {
		t.Error(err)
	}
}

func TestALockGrantedToACallerWhoHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s := storageOver(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	// The node grants it, but the caller goes before the answer arrives.
	n.locked(func() {
		n.fail = func(r *http.Request) int {
			if r.Method == http.MethodPost {
				n.locks[lockName] = r.Header.Get(ownerHeader)
				cancel()
				<-r.Context().Done()
			}
			return 0
		}
	})
	if err := s.Lock(ctx, lockName); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventually(t, "the release", func() bool { return n.countRequests("DELETE") == 1 })
	n.locked(func() {
		if len(n.locks) != 0 {
			t.Error("it is held still:", n.locks)
		}
	})
}

// A node gives a lock up that had no sign of life for 30 s.
func TestALockIsTriedEverySecondAndOneSignOfLifeMayBeLost(t *testing.T) {
	t.Parallel()
	const nodeWaits = 30 * time.Second
	locks := newRemoteStorage(settings{}, newNode(settings{})).locks
	if locks.poll != time.Second || 2*locks.refresh+releaseLimit > nodeWaits {
		t.Error(locks.poll, locks.refresh)
	}
}

func TestOwnersDifferBetweenClients(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	a, b := linkTo(t, n, "a", "").storage.locks.owner, linkTo(t, n, "a", "").storage.locks.owner
	if a == b || len(a) != 32 {
		t.Error(a, b)
	}
}
