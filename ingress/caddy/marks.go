package scafo

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// markedFor is how long a failed upstream is tried last. 2 s: at a request per millisecond two thousand requests are
// spared the connect deadline, and a process that was only restarted is first again before anybody notices.
const markedFor = 2 * time.Second

// marks are the upstreams that failed lately. A mark only changes the order in which upstreams are tried; none is ever
// left out, because a wrong mark on the last one would turn a hiccup into an outage. There are not more than the
// documents name, since marks that are over are dropped whenever one is set.
type marks struct {
	// count is how many there are, so that requests in good times need no lock.
	count atomic.Int64
	mutex sync.Mutex
	until map[string]time.Time
}

// failed are the marks of this process. They are about addresses, so reloads and fleets make no difference.
var failed = &marks{until: map[string]time.Time{}}

// next is the upstream to try now, after those in tried, which are in the order of their attempts: the first one that is
// neither tried nor marked at now, else the first that is not tried, else the one whose attempt is longest ago. Upstreams
// must not be empty.
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
		if attempt := lastAttempt(tried, address); attempt > 0 {
			rank = attempt + 1
		} else if m.until[address].After(now) {
			rank = 1
		}
		if rank < lowest {
			best, lowest = address, rank
		}
	}
	return best
}

// lastAttempt is the place of address among those tried, from 1; 0 if it was not.
func lastAttempt(tried []string, address string) int {
	return slices.Index(tried, address) + 1
}

func (m *marks) set(address string, now time.Time) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for other, until := range m.until {
		if !until.After(now) {
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
