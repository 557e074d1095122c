package scafo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
)

const (
	// firstRetry and longestRetry bound the pauses of a caller that has time while a node fails; they double in between.
	firstRetry   = time.Second
	longestRetry = 30 * time.Second
)

// news wakes whoever waits for a document.
type news struct {
	mutex sync.Mutex
	next  chan struct{}
}

// firstDocuments tells that some fleet of this process got its first document.
var firstDocuments = &news{next: make(chan struct{})}

// coming is closed with the next news. Take it before looking, so that none is missed.
func (n *news) coming() <-chan struct{} {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.next
}

func (n *news) tell() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	close(n.next)
	n.next = make(chan struct{})
}

// hasTime tells whether the caller works for as long as its configuration does. That is who manages the certificates of
// written sites: it takes any failure but a missing certificate for the end of its work, so a site would stay without one
// until the next reload. It runs beside the start, and ends with the context of the configuration.
//
// Nobody else is kept waiting: handshakes, requests and maintenance have contexts of their own, and who is still setting
// the configuration up has Caddy's own kind of context.
func (s *storage) hasTime(ctx context.Context) bool {
	if _, settingUp := ctx.(caddy.Context); settingUp || s.lifetime == nil {
		return false
	}
	return ctx.Done() == s.lifetime
}

// patiently makes one attempt, and if the caller has time, more of them until it comes to something: with the first
// document of a fleet while the place is unknown, and after a pause while the node fails.
func (s *storage) patiently(ctx context.Context, attempt func() error) error {
	if !s.hasTime(ctx) {
		return attempt()
	}
	pause := s.retry
	for {
		document := firstDocuments.coming()
		err := attempt()
		var again <-chan time.Time
		switch {
		case errors.Is(err, errHomeUnknown):
			// Only a document helps.
		case err != nil && mayPass(err):
			again = time.After(pause)
			pause = min(2*pause, longestRetry)
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-document:
		case <-again:
		}
	}
}

// mayPass tells whether a failure is one of a node that may be well again later. A missing key, a damaged value and a
// request that the node does not understand stay what they are.
func mayPass(err error) bool {
	if errors.Is(err, fs.ErrNotExist) || isDamaged(err) {
		return false
	}
	var answered *refusal
	if errors.As(err, &answered) {
		switch answered.status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
			return true
		}
		return answered.status >= http.StatusInternalServerError
	}
	var unanswered *url.Error
	return errors.As(err, &unanswered) || errors.Is(err, errNoToken) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
