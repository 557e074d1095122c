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

// waiting is since when a request waits for a connection to its upstream; nil while it does not. Caddy reports no failure
// for a client that goes before the connect deadline.
type waiting struct {
	since atomic.Pointer[time.Time]
}

// watch gives r to be passed on so that the waits are noted.
func (w *waiting) watch(r *http.Request) *http.Request {
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) {
			now := time.Now()
			w.since.Store(&now)
		},
		GotConn: func(httptrace.GotConnInfo) { w.since.Store(nil) },
	}))
}

// isSlow tells whether the last upstream lets no connection come about.
func (w *waiting) isSlow(now time.Time) bool {
	since := w.since.Load()
	return since != nil && now.Sub(*since) >= slowDial
}
