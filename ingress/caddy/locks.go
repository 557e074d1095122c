package scafo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// lockPoll is the pause between two tries for a lock that is taken, as the ingress protocol says.
	lockPoll = time.Second
	// lockRefresh is the pause between two signs of life for a lock that is held. A node restamps for 30 s after the
	// last one, so two may be lost.
	lockRefresh = 10 * time.Second
	// releaseLimit bounds the release of a lock that was perhaps granted to a caller who has gone.
	releaseLimit = 5 * time.Second

	ownerHeader = "X-Scafo-Lock-Owner"
)

// locks are the locks of one fleet that this process holds or wants. The node tells owners apart and not callers, so
// callers within this process exclude each other here.
type locks struct {
	storage       *remoteStorage
	owner         string
	poll, refresh time.Duration

	mutex sync.Mutex
	taken map[string]*keeper
}

// keeper gives signs of life for one lock until it is stopped.
type keeper struct {
	stop    context.CancelFunc
	stopped chan struct{}
	// granted is whether the node has given the lock; until then it is only asked for.
	granted bool
}

func newLocks(storage *remoteStorage) *locks {
	var owner [16]byte
	_, _ = rand.Read(owner[:]) // never fails, says its documentation
	return &locks{
		storage: storage, owner: hex.EncodeToString(owner[:]),
		poll: lockPoll, refresh: lockRefresh, taken: map[string]*keeper{},
	}
}

// lock waits until it has the lock or ctx is done. Only a lock that is taken is waited for; any other failure ends it.
func (l *locks) lock(ctx context.Context, name string) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return about("lock", name, ctx.Err())
		case <-pause.C:
		}
		if got, err := l.try(ctx, name); got || err != nil {
			return err
		}
		pause.Reset(l.poll)
	}
}

// try takes the lock if it is free.
func (l *locks) try(ctx context.Context, name string) (bool, error) {
	if _, err := checkedKey(name); err != nil {
		return false, err
	}
	needed, stop := context.WithCancel(context.Background())
	k := &keeper{stop: stop, stopped: make(chan struct{})}
	if !l.reserve(name, k) {
		stop()
		return false, nil
	}
	if err := l.post(ctx, name); err != nil {
		if !isTaken(err) {
			l.giveBack(name, err)
		}
		stop()
		l.forget(name)
		if isTaken(err) {
			return false, nil
		}
		return false, about("lock", name, err)
	}
	l.mutex.Lock()
	k.granted = true
	l.mutex.Unlock()
	go l.keep(needed, name, k.stopped)
	return true, nil
}

// unlock releases the lock. One that this process does not hold is only released at the node, which knows better, and one
// that it is asking for again is left to whoever asks.
func (l *locks) unlock(ctx context.Context, name string) error {
	l.mutex.Lock()
	k := l.taken[name]
	wanted := k != nil && !k.granted
	l.mutex.Unlock()
	if wanted {
		return nil
	}
	if k != nil {
		// The last sign of life has to arrive before the release; after it, it would take the lock again.
		k.stop()
		<-k.stopped
		defer l.forget(name)
	}
	return about("unlock", name, l.delete(ctx, name))
}

// keep gives signs of life for as long as the lock is needed, or until it hears that somebody else has it.
func (l *locks) keep(needed context.Context, name string, stopped chan<- struct{}) {
	defer close(stopped)
	every := time.NewTicker(l.refresh)
	defer every.Stop()
	failing := false
	for {
		select {
		case <-needed.Done():
			return
		case <-every.C:
		}
		// Not ended by the release, which has to come after it; the storage timeout bounds it.
		err := l.post(context.WithoutCancel(needed), name)
		if isTaken(err) {
			l.storage.log().Warn("a lock was lost to somebody else while it was needed", zap.String("lock", name))
			return
		}
		if err != nil && !failing {
			l.storage.log().Warn("a lock may be lost: the node does not take signs of life", zap.String("lock", name), zap.Error(err))
		}
		failing = err != nil
	}
}

// giveBack releases a lock that may have been granted without our hearing of it.
func (l *locks) giveBack(name string, cause error) {
	var answered *refusal
	if errors.As(cause, &answered) || errors.Is(cause, errNoToken) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	if err := l.delete(ctx, name); err != nil {
		l.storage.log().Debug("a lock that was perhaps granted could not be released", zap.String("lock", name), zap.Error(err))
	}
}

func (l *locks) post(ctx context.Context, name string) error {
	return l.ask(ctx, http.MethodPost, name)
}

func (l *locks) delete(ctx context.Context, name string) error {
	return l.ask(ctx, http.MethodDelete, name)
}

func (l *locks) ask(ctx context.Context, method, name string) error {
	path, err := checkedKey(name)
	if err != nil {
		return err
	}
	header := http.Header{ownerHeader: {l.owner}}
	return l.storage.ask(ctx, method, "/v1/storage/locks/"+path, header, nil, http.StatusNoContent, nil)
}

func (l *locks) reserve(name string, k *keeper) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.taken[name] != nil {
		return false
	}
	l.taken[name] = k
	return true
}

func (l *locks) forget(name string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	delete(l.taken, name)
}

// isTaken tells whether the node says that somebody else holds the lock.
func isTaken(err error) bool {
	var answered *refusal
	return errors.As(err, &answered) && answered.status == http.StatusConflict
}
