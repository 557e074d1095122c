package scafo

import (
	"context"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// links are the fleets in use, by their settings. A configuration takes what it needs before the one that it replaces
// lets go, so a reload neither stops a poller whose settings stay nor loses its document.
var links = caddy.NewUsagePool()

// link is what this process has of one fleet: its last document, the poller that renews it, and the way to its storage.
type link struct {
	settings
	node    *node
	storage *remoteStorage
	// held is nil until the first document.
	held atomic.Pointer[table]
	// attempted is closed when the first poll has ended, well or not.
	attempted chan struct{}
	stop      context.CancelFunc
	stopped   chan struct{}
	logger    func() *zap.Logger
}

// acquire gives the link for s, and starts its poller if this is the first use. The caller has to release it.
func acquire(s settings) (*link, error) {
	seed := lastDocument(s.name)
	value, _, err := links.LoadOrNew(s, func() (caddy.Destructor, error) { return newLink(s, seed), nil })
	if err != nil {
		return nil, err
	}
	return value.(*link), nil
}

func release(s settings) error {
	_, err := links.Delete(s)
	return err
}

// lastDocument is a document that this process already holds for the fleet of that name, under other settings.
func lastDocument(name string) *table {
	var last *table
	links.Range(func(_, value any) bool {
		if l, ok := value.(*link); ok && l.name == name && l.held.Load() != nil {
			last = l.held.Load()
		}
		return last == nil
	})
	return last
}

func newLink(s settings, seed *table) *link {
	ctx, stop := context.WithCancel(context.Background())
	n := newNode(s)
	l := &link{
		settings: s, node: n, storage: newRemoteStorage(s, n), logger: currentLog,
		attempted: make(chan struct{}), stop: stop, stopped: make(chan struct{}),
	}
	l.held.Store(seed)
	go func() {
		defer close(l.stopped)
		(&poller{link: l}).run(ctx)
	}()
	return l
}

// hold takes a document over, and tells whether it is the first.
func (l *link) hold(fresh *table) (first bool) {
	if first = l.held.Swap(fresh) == nil; first {
		firstDocuments.tell()
	}
	return first
}

// Destruct ends the poller. What holds the link still has the last document and can still reach the storage: an
// issuance may outlive the configuration that it began under.
func (l *link) Destruct() error {
	l.stop()
	<-l.stopped
	return nil
}

func (l *link) log() *zap.Logger {
	return l.logger().With(zap.String("fleet", l.name))
}

// currentLog is Caddy's log as it is now. The one of the configuration that made a link may be gone before the link is.
func currentLog() *zap.Logger {
	return caddy.Log().Named("scafo")
}
