package scafo

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// markedFor is how long a failed upstream is tried last. 2 s: at a request per millisecond two thousand requests are
	// spared the connect deadline, and a process that was only restarted is first again before anybody notices.
	markedFor = 2 * time.Second
	// probedFor is how long the request that finds out has, before the next one does. 4 s: longer than Caddy's connect
	// deadline of 3 s.
	probedFor = 4 * time.Second
	// forgottenAfter is how long after its end a mark is forgotten that nobody needed to find out about. A minute: an
	// upstream that no document names any more is not remembered for ever.
	forgottenAfter = time.Minute
)

// marks are the upstreams that failed lately. A mark only changes the order in which upstreams are tried; none is ever
// left out, because a wrong mark on the last one would turn a hiccup into an outage. There are not many more than the
// documents name, since forgotten marks are dropped whenever one is set.
//
// A mark that is over is half open: one request finds out, and until it is answered the others go where they went. So a
// machine that is gone without a word costs one request the connect deadline at a time, and not all that come within it.
type marks struct {
	// count is how many there are, so that requests in good times need no lock.
	count atomic.Int64
	mutex sync.Mutex
	until map[string]time.Time
}

// failed are the marks of this process. They are about addresses, so reloads and fleets make no difference.
var failed = &marks{until: map[string]time.Time{}}

// next is the upstream to try now, after those in tried, which are in the order of their attempts: the first one that is
// neither tried nor marked at now, else the first that is not tried, else the one whose attempt is longest ago. A first
// attempt that meets a mark that is over before that finds out, and the upstream is marked for the others meanwhile.
// Upstreams must not be empty.
func (m *marks) next(upstreams, tried []string, now time.Time) string {
	if len(upstreams) == 1 || len(tried) == 0 && m.count.Load() == 0 {
		return upstreams[0]
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	// Lower is better: 0 for neither tried nor marked, 1 for marked only, above that the later the worse.
	best, lowest := "", math.MaxInt
	for _, address := range upstreams {
		rank := 0
		until, marked := m.until[address]
		if attempt := lastAttempt(tried, address); attempt > 0 {
			rank = attempt + 1
		} else if marked && isRemembered(until, now) {
			rank = 1
			if len(tried) == 0 && lowest > 0 && !until.After(now) {
				m.until[address] = now.Add(probedFor)
				return address
			}
		}
		if rank < lowest {
			best, lowest = address, rank
		}
	}
	return best
}

// isRemembered tells whether a mark counts, in force or half open.
func isRemembered(until, now time.Time) bool {
	return until.Add(forgottenAfter).After(now)
}

// lastAttempt is the place of address among those tried, from 1; 0 if it was not.
func lastAttempt(tried []string, address string) int {
	return slices.Index(tried, address) + 1
}

func (m *marks) set(address string, now time.Time) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for other, until := range m.until {
		if !isRemembered(until, now) {
			delete(m.until, other)
		}
	}
	m.until[address] = now.Add(markedFor)
	m.count.Store(int64(len(m.until)))
}

func (m *marks) clear(address string) {
	if m.count.Load() == 0 {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	delete(m.until, address)
	m.count.Store(int64(len(m.until)))
}
