package scafo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.uber.org/zap"
)

const (
	// pollLimit bounds one poll from connecting to the last byte, as the ingress protocol says.
	pollLimit = 10 * time.Second
	// largestDocument is what a node serves at most. 100,000 hosts with three upstreams each take about 25 MiB.
	largestDocument = 256 << 20
	// longestFirstPause is the pause while there is no document at all. Nothing can be served until there is one, and a
	// node that starts has one within seconds.
	longestFirstPause = 500 * time.Millisecond
)

// poller pulls the document of one fleet, again and again. A poll that brings no whole document of version 1 changes
// nothing but the log, which hears of it once for each kind of failure and once when it is over.
type poller struct {
	link *link
	// tag is the entity tag of the document held.
	tag string
	// complaint is the kind of failure that was logged last, while it lasts.
	complaint string
}

// failure is why a poll brought no document. Its kind is what the log is spared a repetition of; the cause may differ
// in ports from one poll to the next.
type failure struct {
	kind  string
	cause error
}

// run polls until the context ends. The pause is between polls and no schedule, so that a slow node is not asked without
// end.
func (p *poller) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		p.poll(ctx)
		if first {
			close(p.link.attempted)
		}
		interval := p.link.pollInterval
		if p.link.held.Load() == nil {
			interval = min(interval, longestFirstPause)
		}
		pause.Reset(interval)
	}
}

func (p *poller) poll(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	fresh, failed := p.fetch(bounded)
	if ctx.Err() != nil {
		return
	}
	if failed != nil {
		p.complain(failed)
		return
	}
	if p.complaint != "" {
		p.complaint = ""
		p.link.log().Info("routing documents come again")
	}
	if fresh != nil {
		p.takeOver(fresh)
	}
}

func (p *poller) takeOver(fresh *table) {
	level := zap.DebugLevel
	if p.link.hold(fresh) {
		level = zap.InfoLevel
	}
	p.link.log().Log(level, "new routing document",
		zap.Int("routes", len(fresh.routes)), zap.Int("api_hosts", len(fresh.api)))
	if fresh.skipped > 0 {
		p.link.log().Warn("addresses in the routing document cannot be dialled", zap.Int("skipped", fresh.skipped))
	}
}

func (p *poller) complain(failed *failure) {
	if p.complaint == failed.kind {
		return
	}
	p.complaint = failed.kind
	consequence := "the last one stays in force"
	if p.link.held.Load() == nil {
		consequence = "requests for this fleet are answered 503"
	}
	p.link.log().Warn("no routing document, "+consequence, zap.String("problem", failed.kind), zap.Error(failed.cause))
}

// fetch asks once. No document and no failure means that the one held is still right.
func (p *poller) fetch(ctx context.Context) (*table, *failure) {
	header := http.Header{"Accept": {"application/json"}}
	if p.tag != "" {
		header.Set("If-None-Match", p.tag)
	}
	response, err := p.link.node.send(ctx, http.MethodGet, p.target(), header, nil)
	switch {
	case errors.Is(err, errNoToken):
		return nil, &failure{"there is no ingress token", err}
	case err != nil:
		return nil, &failure{"the node does not answer", err}
	case response.StatusCode == http.StatusNotModified && p.tag != "":
		drained(response)
		return nil, nil
	case response.StatusCode != http.StatusOK:
		refusal := refused(response)
		return nil, &failure{"the node answered " + strconv.Itoa(refusal.status), refusal}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, largestDocument+1))
	if err != nil {
		return nil, &failure{"the document was cut", err}
	}
	if len(body) > largestDocument {
		return nil, &failure{"the document is too large", fmt.Errorf("it has more than %d MiB", largestDocument>>20)}
	}
	fresh, err := parseDocument(body)
	if err != nil {
		return nil, &failure{"the document is refused as a whole", err}
	}
	p.tag = response.Header.Get("ETag")
	return fresh, nil
}

func (p *poller) target() string {
	const path = "/v1/ingress/routes"
	if p.link.prefer == "" {
		return path
	}
	return path + "?" + url.Values{"prefer": {p.link.prefer}}.Encode()
}
