package scafo

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// sendRaw sends what is no request that a library would make, and gives the status of the answer.
func (s *stage) sendRaw(text string) int {
	s.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(s.dir, "http.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, text)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

func TestABodyThatIsNoneMovesNoApplicationOffItsUpstream(t *testing.T) {
	s, n := newStage(t), newFakeNode(t)
	first, firstAddress := backend(t, "first")
	_, second := backend(t, "second")
	n.serveDocument(documentOf(map[string]string{"shop.example": firstAddress + "," + second}, ""))
	for _, retries := range []string{"", "lb_retries 2\nlb_retry_match {\nmethod POST\n}"} {
		s.mustLoad(s.fleet(n, "main"), "scafo\nreverse_proxy {\ndynamic scafo\n"+retries+"\n}")
		for _, body := range []string{"zz\r\nabc\r\n0\r\n\r\n", "3\r\nabc\r\n-1\r\n"} {
			if status := s.sendRaw("POST / HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n\r\n" + body); status < 400 {
				t.Error("it is answered", status)
			}
			s.expect([3]string{"shop.example", "/", "200 first"})
		}
	}
	// An upstream that breaks off while it is sent a body is at fault.
	first.Close()
	s.mustLoad(s.fleet(n, "main"), "scafo\nreverse_proxy {\ndynamic scafo\n}")
	if got := s.send(http.MethodPost, "shop.example", "/"); !strings.HasPrefix(got, "502") {
		t.Error(got)
	}
	s.expect([3]string{"shop.example", "/", "200 second"})
}

func TestABodyThatItsReaderClosesHasNotFailed(t *testing.T) {
	for _, closes := range []bool{false, true} {
		reader, writer := io.Pipe()
		r := httptest.NewRequest(http.MethodPost, "/", reader)
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{}))
		watchBody(r)
		if closes {
			_ = r.Body.Close()
		} else {
			_ = writer.CloseWithError(io.ErrUnexpectedEOF)
		}
		if _, err := r.Body.Read(make([]byte, 1)); err == nil || bodyFailed(r) == closes {
			t.Error(closes, err)
		}
	}
}
