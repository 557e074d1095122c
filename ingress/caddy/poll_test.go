package scafo

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// observed is a poller that is driven by hand, and its log.
func observed(t *testing.T, n *fakeNode) (*poller, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	l := linkTo(t, n, "main", "")
	l.logger = func() *zap.Logger { return zap.New(core) }
	return &poller{link: l}, logs
}

func TestAPollThatFailsKeepsTheLastDocumentAndIsLoggedOnce(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	p, logs := observed(t, n)
	good := documentOf(map[string]string{"a.example": "127.0.0.1:1"}, "")
	n.serveDocument(good)
	p.poll(t.Context())
	held := p.link.held.Load()
	if held == nil || logs.FilterMessage("new routing document").Len() != 1 {
		t.Fatal("no document", logs.All())
	}
	bad := map[string]http.HandlerFunc{
		"draining":  nil,
		"gone":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, 404, "Not found", "x") },
		"other":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"v":2,"routes":[]}`) },
		"empty":     func(w http.ResponseWriter, _ *http.Request) {},
		"no change": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(good)+1))
			_, _ = io.WriteString(w, good)
		},
		"broken off": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, good)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	}
	for name, answer := range bad {
		n.answerPolls(answer)
		logs.TakeAll()
		for range 3 {
			p.poll(t.Context())
		}
		if p.link.held.Load() != held {
			t.Errorf("%s: the document is another one", name)
		}
		if logs.Len() != 1 || logs.All()[0].Level != zap.WarnLevel {
			t.Errorf("%s: logged %v", name, logs.All())
		}
		n.serveDocument(good)
		logs.TakeAll()
		p.poll(t.Context())
		if logs.FilterMessage("routing documents come again").Len() != 1 {
			t.Errorf("%s: the end was logged as %v", name, logs.All())
		}
		held = p.link.held.Load()
	}
}

func TestADeadNodeIsLoggedOnceAlthoughItsPortsDiffer(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	p, logs := observed(t, n)
	n.server.Close()
	for range 3 {
		p.poll(t.Context())
	}
	if logs.Len() != 1 || !strings.Contains(logs.All()[0].Message, "503") {
		t.Error(logs.All())
	}
	for _, entry := range logs.All() {
		if strings.Contains(fmt.Sprint(entry), testToken) {
			t.Error("the token is in the log")
		}
	}
}

func TestAnUnchangedDocumentIsNotReadAgain(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	p, _ := observed(t, n)
	var asked atomic.Value
	n.answerPolls(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.RawQuery + " " + r.Header.Get("If-None-Match"))
		w.Header().Set("ETag", `"one"`)
		if r.Header.Get("If-None-Match") == `"one"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, `{"v":1,"routes":[]}`)
	})
	p.poll(t.Context())
	held := p.link.held.Load()
	if asked.Load() != "prefer=self " {
		t.Error(asked.Load())
	}
	p.poll(t.Context())
	if asked.Load() != `prefer=self "one"` || p.link.held.Load() != held || p.complaint != "" {
		t.Error(asked.Load(), p.complaint)
	}
}

func TestATokenFileMayComeLateAndChange(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.serveDocument(`{"v":1,"routes":[]}`)
	p, _ := observed(t, n)
	own := p.link.node
	own.token = ""
	own.tokenFile = t.TempDir() + "/none"
	p.poll(t.Context())
	if p.complaint != "there is no ingress token" {
		t.Error(p.complaint)
	}
	for _, text := range []string{"", " \n", "two tokens", strings.Repeat("x", 5000), "wrong"} {
		own.tokenFile = tokenFile(t, text)
		if p.poll(t.Context()); p.link.held.Load() != nil || strings.Contains(p.complaint, "wrong") {
			t.Errorf("%q is taken for the token", text)
		}
	}
	own.tokenFile = tokenFile(t, testToken+"\n")
	if p.poll(t.Context()); p.link.held.Load() == nil {
		t.Error(p.complaint)
	}
}

func TestALinkIsSharedAndItsDocumentOutlivesAChangeOfSettings(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	n.serveDocument(documentOf(map[string]string{"a.example": "127.0.0.1:1"}, ""))
	s := n.settings("shared-" + t.Name())
	first, err := acquire(s)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a document", func() bool { return first.held.Load() != nil })
	n.answerPolls(nil) // from here on the node has nothing to say
	again, err := acquire(s)
	if err != nil || again != first {
		t.Fatal("equal settings do not share", err)
	}
	changed := s
	changed.pollInterval = time.Second
	other, err := acquire(changed)
	if err != nil || other == first || other.held.Load() == nil {
		t.Fatal("the document was lost", err)
	}
	for _, each := range []settings{s, s, changed} {
		if err := release(each); err != nil {
			t.Error(err)
		}
	}
	<-first.stopped
	<-other.stopped
}

func TestSettingsThatCannotWorkAreRefusedWithoutTheToken(t *testing.T) {
	t.Parallel()
	good := Fleet{Name: "main", Node: "http://127.0.0.1:7400/", Token: " hunter2\n"}
	s, err := good.check()
	if err != nil || s.node != "http://127.0.0.1:7400" || s.token != "hunter2" || s.pollInterval != 5*time.Second || s.storageTimeout != 30*time.Second {
		t.Error(s, err)
	}
	for name, change := range map[string]func(*Fleet){
		"name": func(f *Fleet) { f.Name = "" }, "long name": func(f *Fleet) { f.Name = strings.Repeat("x", 64) },
		"no node": func(f *Fleet) { f.Node = "" }, "no scheme": func(f *Fleet) { f.Node = "127.0.0.1:7400" },
		"ftp": func(f *Fleet) { f.Node = "ftp://a:1" }, "user": func(f *Fleet) { f.Node = "http://u:hunter2@a:1" },
		"query": func(f *Fleet) { f.Node = "http://a:1/?x=hunter2" }, "no host": func(f *Fleet) { f.Node = "http://:80" },
		"no token": func(f *Fleet) { f.Token = " " }, "two tokens": func(f *Fleet) { f.TokenFile = "/x" },
		"odd token": func(f *Fleet) { f.Token = "hunter2 hunter2" }, "prefer": func(f *Fleet) { f.Prefer = strings.Repeat("x", 254) },
		"fast": func(f *Fleet) { f.PollInterval = duration(time.Millisecond) }, "slow": func(f *Fleet) { f.PollInterval = duration(time.Minute) },
		"negative": func(f *Fleet) { f.StorageTimeout = duration(-1) }, "endless": func(f *Fleet) { f.StorageTimeout = duration(time.Hour) },
	} {
		fleet := good
		change(&fleet)
		if _, err := fleet.check(); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a node takes for its answer comes on top of the interval, and a node that does not answer is given up after 10 s.
func TestPollsAreApartByTheIntervalAndGivenUpAfterTenSeconds(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	const slow = 400 * time.Millisecond
	began := make(chan time.Time, 16)
	n.answerPolls(func(w http.ResponseWriter, _ *http.Request) {
		began <- time.Now()
		time.Sleep(slow)
		_, _ = io.WriteString(w, `{"v":1,"routes":[]}`)
	})
	s := n.settings("paced")
	s.pollInterval = 300 * time.Millisecond
	if _, err := acquire(s); err != nil {
		t.Fatal(err)
	}
	first := <-began
	for range 3 {
		next := <-began
		if apart := next.Sub(first); apart < slow+s.pollInterval {
			t.Errorf("two polls are %v apart: that is a schedule", apart)
		}
		first = next
	}
	if err := release(s); err != nil {
		t.Fatal(err)
	}

	p, _ := observed(t, n)
	over := make(chan struct{})
	n.answerPolls(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-over:
		}
	})
	ended, started := make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		p.poll(t.Context())
	}()
	select {
	case <-ended:
	case <-time.After(6 * pollLimit):
		t.Error("a node that does not answer is waited for")
	}
	close(over)
	<-ended
	if took := time.Since(started); took < pollLimit-100*time.Millisecond {
		t.Errorf("a node that does not answer was given up after %v", took)
	}
}
