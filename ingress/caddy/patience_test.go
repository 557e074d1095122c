package scafo

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/certmagic"
)

// lasting is a storage over the links given whose configuration lives until the test or the function ends it.
func lasting(t *testing.T, links ...*link) (*storage, context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(t.Context())
	s := newStorage(links, &certmagic.FileStorage{Path: t.TempDir()})
	s.lifetime, s.retry = ctx.Done(), time.Millisecond
	return s, ctx, end
}

// missedBy is how many storage requests n has broken off.
func missedBy(n *fakeNode) (missed int) {
	n.locked(func() { missed = n.missed })
	return missed
}

func TestAManagedCertificateWaitsForTheDocumentOfItsFleet(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.down = true
	n.objects[ourKey] = fakeObject{value: []byte("v")}
	l := linkTo(t, n, "a", "")
	s, ctx, end := lasting(t, l)
	defer end()
	ours, own := make(chan error, 1), make(chan error, 1)
	go func() {
		value, err := s.Load(ctx, ourKey)
		if string(value) != "v" {
			t.Errorf("it loads %q", value)
		}
		ours <- err
	}()
	go func() {
		// The site of an operator, that no fleet names: it is certain only now that there is no certificate.
		_, err := s.Load(ctx, otherKey)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Error("a certificate that is not there:", err)
		}
		own <- s.Lock(ctx, "issue_cert_own.example")
	}()
	eventually(t, "a look for both", func() bool { return missedBy(n) > 1 })
	select {
	case err := <-ours:
		t.Error("it did not wait:", err)
	case err := <-own:
		t.Error("it did not wait:", err)
	default:
	}
	n.locked(func() { n.down = false })
	l.hold(tableOf(t, documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")))
	if err := errors.Join(<-ours, <-own); err != nil {
		t.Error(err)
	}
}

func TestAManagedCertificateOutlastsAnOutageOfItsStorage(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s, ctx, end := lasting(t, linkTo(t, n, "a", documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")))
	defer end()
	n.objects[ourKey] = fakeObject{value: []byte("v")}
	outage := []int{503, 500, 401, 503}
	left := func(*http.Request) (status int) {
		if len(outage) > 0 {
			status, outage = outage[0], outage[1:]
		}
		return status
	}
	n.locked(func() { n.fail = left })
	if value, err := s.Load(ctx, ourKey); err != nil || string(value) != "v" {
		t.Error(value, err)
	}
	n.locked(func() { outage = []int{503, 503} })
	if !s.Exists(ctx, ourKey) {
		t.Error("an outage makes it look as if it were not there")
	}
	n.locked(func() { outage = []int{503, 503} })
	if err := s.Lock(ctx, lockName); err != nil {
		t.Error(err)
	}
	for _, status := range []int{400, 404, 409, 502} {
		n.locked(func() { outage, n.requests = []int{status}, nil })
		if _, err := s.Load(ctx, ourKey); err == nil || n.countRequests("GET") != 1 {
			t.Errorf("%d, which stays, is tried again: %v", status, err)
		}
	}
}

func TestADamagedCertificateIsAMissingOneAndOtherDamageIsReported(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	s, ctx, end := lasting(t, linkTo(t, n, "a", documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")))
	defer end()
	n.fail = func(*http.Request) int { return http.StatusBadGateway }
	for _, whose := range []context.Context{ctx, t.Context()} {
		_, loadErr := s.Load(whose, ourKey)
		_, statErr := s.Stat(whose, ourKey)
		for _, err := range []error{loadErr, statErr} {
			if !errors.Is(err, fs.ErrNotExist) || !isDamaged(err) {
				t.Error(err)
			}
		}
		if _, err := s.Load(whose, "ocsp/a.x.example-1f2e"); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Error("a staple:", err)
		}
	}
}

func TestTheWaitForACertificateEndsWithTheConfiguration(t *testing.T) {
	t.Parallel()
	silent, failing := newFakeNode(t), newFakeNode(t)
	silent.down = true
	failing.fail = func(*http.Request) int { return http.StatusServiceUnavailable }
	s, ctx, end := lasting(t, linkTo(t, silent, "a", ""))
	known, _, alsoEnd := lasting(t, linkTo(t, failing, "a", documentOf(map[string]string{"a.x.example": "127.0.0.1:1"}, "")))
	defer alsoEnd()
	known.lifetime, known.retry = ctx.Done(), time.Hour
	waiting := make(chan error, 2)
	for _, over := range []*storage{s, known} {
		go func() {
			_, err := over.Load(ctx, ourKey)
			waiting <- err
		}()
	}
	eventually(t, "two who wait", func() bool { return missedBy(silent) > 0 && failing.countRequests("") > 0 })
	end()
	for range 2 {
		if err := <-waiting; !errors.Is(err, context.Canceled) || errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

func TestOnlyTheManagementOfCertificatesIsKeptWaiting(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.down = true
	s, ctx, end := lasting(t, linkTo(t, n, "a", ""))
	defer end()
	handshake, cancel := context.WithCancel(ctx)
	defer cancel()
	for what, whose := range map[string]context.Context{
		"a handshake": handshake, "maintenance": t.Context(), "who sets the configuration up": caddy.Context{Context: ctx},
	} {
		if _, err := s.Load(whose, ourKey); !errors.Is(err, errHomeUnknown) {
			t.Error(what, err)
		}
	}
	for _, key := range []string{"ocsp/a.x.example-1f2e", "acme/ca/challenge_tokens/a.x.example.json", "certificates/ca/a.x.example"} {
		if _, err := s.Stat(ctx, key); !errors.Is(err, errHomeUnknown) {
			t.Error(key, err)
		}
	}
}
