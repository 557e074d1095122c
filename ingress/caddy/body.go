package scafo

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// bodyVar is where the body of a request is kept: the proxy wraps it, and works on a copy of the request.
const bodyVar = "scafo.body"

// clientBody is what a client sends. It notes whether that ended early or was no body at all, which the reverse proxy does
// not tell from a failure of the upstream.
type clientBody struct {
	io.ReadCloser
	failed, closed atomic.Bool
}

// watchBody makes the body of r one that says so.
func watchBody(r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	body := &clientBody{ReadCloser: r.Body}
	r.Body = body
	caddyhttp.SetVar(r.Context(), bodyVar, body)
}

// bodyFailed tells whether the client's body could not be read.
func bodyFailed(r *http.Request) bool {
	body, ok := caddyhttp.GetVar(r.Context(), bodyVar).(*clientBody)
	return ok && body.failed.Load()
}

// Read reads from the client.
func (b *clientBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	// Whoever closes it, because the upstream broke off for one, ends the reads as well.
	if err != nil && !errors.Is(err, io.EOF) && !b.closed.Load() {
		b.failed.Store(true)
	}
	return n, err
}

// Close ends it.
func (b *clientBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
