package scafo

import (
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// slowDial is how long a wait for a connection lasts before it says something about the upstream. 1 s: the first packet of
// an attempt was lost by then.
const slowDial = time.Second

// waiting is since when a request waits for a connection to its upstream, nil while it does not, and which upstream that is.
// Caddy reports no failure for a client that goes before the connect deadline, and tells of an answer only when it is over,
// which that of a stream or a WebSocket may be in hours.
type waiting struct {
	since   atomic.Pointer[time.Time]
	address atomic.Pointer[string]
}

// watch gives r to be passed on so that the waits are noted, and an answer as soon as it begins. The notes are made in
// goroutines of the transport.
func (w *waiting) watch(r *http.Request) *http.Request {
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(address string) {
			now := time.Now()
			w.address.Store(&address)
			w.since.Store(&now)
		},
		GotConn: func(httptrace.GotConnInfo) { w.since.Store(nil) },
		GotFirstResponseByte: func() {
			if address := w.address.Load(); address != nil {
				failed.clear(*address)
			}
		},
	}))
}

// isSlow tells whether the last upstream lets no connection come about.
func (w *waiting) isSlow(now time.Time) bool {
	since := w.since.Load()
	return since != nil && now.Sub(*since) >= slowDial
}
