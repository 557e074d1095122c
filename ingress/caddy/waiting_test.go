package scafo

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"syscall"
	"testing"
	"time"
)

// fullUp is an address where packets that ask for a connection are lost, as at a machine that is gone: its listener has
// room for one, which is taken.
func fullUp(t *testing.T) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", name.(*syscall.SockaddrInet4).Port)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return address
}

func TestAClientThatGoesWhileNoConnectionComesAboutPutsTheUpstreamLast(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	gone := fullUp(t)
	_, alive := backend(t, "alive")
	n.serveDocument(documentOf(map[string]string{"shop.example": gone + "," + alive}, ""))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	isMarked := func() bool {
		failed.mutex.Lock()
		defer failed.mutex.Unlock()
		_, marked := failed.until[gone]
		return marked
	}
	client := s.client()
	// Before the connect deadline of 3 s.
	client.Timeout = 2 * slowDial
	if response, err := client.Get("http://shop.example/"); err == nil {
		t.Fatal("it is answered", response.Status)
	}
	eventually(t, "the mark", isMarked)
	s.expect([3]string{"shop.example", "/", "200 alive"})
	failed.clear(gone)
}

func TestAnAnswerThatHasBegunEndsTheMarkAndNotOnlyOneThatIsOver(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	streams := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(streams.Close)
	address := streams.Listener.Addr().String()
	_, other := backend(t, "other")
	n.serveDocument(documentOf(map[string]string{"shop.example": address + "," + other}, ""))
	s.mustLoad(s.fleet(n, "main"), proxySite)
	failed.set(address, time.Now().Add(-markedFor))
	for range 2 {
		response, err := s.client().Get("http://shop.example/")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		if response.ContentLength >= 0 {
			t.Error("it goes to the other one, although the first one answers")
		}
	}
}

func TestOnlyAWaitOfASecondForAConnectionCounts(t *testing.T) {
	var w waiting
	trace := httptrace.ContextClientTrace(w.watch(httptest.NewRequest(http.MethodGet, "/", nil)).Context())
	trace.GetConn("a:1")
	began := *w.since.Load()
	if w.isSlow(began.Add(slowDial-1)) || !w.isSlow(began.Add(slowDial)) {
		t.Error("a second does not decide")
	}
	trace.GotConn(httptrace.GotConnInfo{})
	if w.isSlow(began.Add(time.Hour)) {
		t.Error("a connection that came about counts as none")
	}
}
