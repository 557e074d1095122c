package scafo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
)

func init() {
	caddy.RegisterModule(Storage{})
}

// Storage keeps what names a domain in the fleet whose current document names that domain exactly, through the fleet's
// node, and everything else on this machine's disk: accounts belong to no fleet.
type Storage struct {
	// Directory for what belongs to no fleet. Default: Caddy's data directory, where Caddy keeps it without this module.
	Local string `json:"local,omitempty"`

	app *App
	// lifetime ends with the configuration.
	lifetime <-chan struct{}
}

// CaddyModule says what this module is called.
func (Storage) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.storage.scafo", New: func() caddy.Module { return new(Storage) }}
}

// Provision finds the fleets.
func (s *Storage) Provision(ctx caddy.Context) (err error) {
	s.Local = caddy.NewReplacer().ReplaceAll(s.Local, "")
	if s.Local == "" {
		s.Local = caddy.AppDataDir()
	}
	s.lifetime = ctx.Done()
	s.app, err = appOf(ctx)
	return err
}

// CertMagicStorage gives CertMagic its storage.
func (s *Storage) CertMagicStorage() (certmagic.Storage, error) {
	over := newStorage(s.app.links, &certmagic.FileStorage{Path: s.Local})
	over.lifetime = s.lifetime
	return over, nil
}

// UnmarshalCaddyfile reads
//
//	storage scafo {
//		local DIRECTORY
//	}
func (s *Storage) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "local" {
			return d.Errf("unknown option %s: there is only local", d.Val())
		}
		if !d.AllArgs(&s.Local) {
			return d.ArgErr()
		}
	}
	return nil
}

// localStorage is what a directory on this machine has to offer.
type localStorage interface {
	certmagic.Storage
	TryLock(ctx context.Context, name string) (bool, error)
}

// storage is a certmagic.Storage over several fleets and a local directory.
//
// A subject that no document names is kept locally. Some fleet may still hold what it kept while it named the subject,
// so reads that find nothing locally look there, without letting a fleet that does not answer stand in the way, and
// deletes go everywhere.
type storage struct {
	links []*link
	local localStorage
	// lifetime ends with the configuration; nil if there is none.
	lifetime <-chan struct{}
	// retry is the first pause of a caller that has time while a node fails.
	retry time.Duration

	mutex sync.Mutex
	// unlockers are the releases of the locks that are held; a document may change between Lock and Unlock.
	unlockers map[string]func(context.Context) error
}

func newStorage(links []*link, local localStorage) *storage {
	return &storage{links: links, local: local, retry: firstRetry, unlockers: map[string]func(context.Context) error{}}
}

// String is what the log shows of it.
func (s *storage) String() string {
	return fmt.Sprintf("scafo, %d fleets, and %v", len(s.links), s.local)
}

// home is homeOf for the subject of key, and homeLocal for a key without one.
func (s *storage) home(key string) (home, *remoteStorage) {
	of, ok := subjectOfKey(key)
	return s.homeOfSubject(of, ok)
}

func (s *storage) homeOfSubject(of subject, named bool) (home, *remoteStorage) {
	if !named {
		return homeLocal, nil
	}
	where, i := homeOf(knownOf(s.links), of)
	return where, s.links[i].storage
}

// Store writes value.
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	switch where, remote := s.home(key); where {
	case homeFleet:
		return remote.Store(ctx, key, value)
	case homeLocal:
		return s.local.Store(ctx, key, value)
	default:
		return about("store", key, errHomeUnknown)
	}
}

// Load reads a value.
func (s *storage) Load(ctx context.Context, key string) ([]byte, error) {
	return read(ctx, s, "load", key, s.local.Load, (*remoteStorage).Load)
}

// Stat tells about a key.
func (s *storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	return read(ctx, s, "stat", key, s.local.Stat, (*remoteStorage).Stat)
}

// read is Load or Stat. Only certificates are waited for: a caller who misses a staple or a challenge does without.
func read[T any](ctx context.Context, s *storage, operation, key string,
	local func(context.Context, string) (T, error),
	remote func(*remoteStorage, context.Context, string) (T, error),
) (value T, err error) {
	if !isCertificate(key) {
		return readOnce(ctx, s, operation, key, local, remote)
	}
	err = s.patiently(ctx, func() error {
		value, err = readOnce(ctx, s, operation, key, local, remote)
		return err
	})
	return value, err
}

// readOnce reads from the fleet that names the subject of key, or else locally and then from any fleet.
func readOnce[T any](ctx context.Context, s *storage, operation, key string,
	local func(context.Context, string) (T, error),
	remote func(*remoteStorage, context.Context, string) (T, error),
) (T, error) {
	where, fleet := s.home(key)
	if where == homeFleet {
		return remote(fleet, ctx, key)
	}
	value, err := local(ctx, key)
	if _, named := subjectOfKey(key); err == nil || !named || !errors.Is(err, fs.ErrNotExist) {
		return value, err
	}
	for _, l := range s.links {
		if elsewhere, failed := remote(l.storage, ctx, key); failed == nil {
			return elsewhere, nil
		}
	}
	if where == homeUnknown {
		return value, about(operation, key, errHomeUnknown)
	}
	return value, err
}

// Exists tells whether key is there as a value or as a prefix.
func (s *storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// Delete removes key and everything beneath it.
func (s *storage) Delete(ctx context.Context, key string) error {
	if where, remote := s.home(key); where == homeFleet {
		return remote.Delete(ctx, key)
	}
	failures := []error{s.local.Delete(ctx, key)}
	if _, named := subjectOfKey(key); named || isSpread(key) {
		for _, l := range s.links {
			failures = append(failures, l.storage.Delete(ctx, key))
		}
	}
	return errors.Join(failures...)
}

// List names the keys under prefix. Under a prefix that several subjects share, all fleets have to answer: a listing
// that lacks a fleet would look like one whose certificates are gone.
func (s *storage) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	where, remote := s.home(prefix)
	if where == homeFleet {
		return remote.List(ctx, prefix, recursive)
	}
	keys, err := s.local.List(ctx, prefix, recursive)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	_, named := subjectOfKey(prefix)
	if !named && !isSpread(prefix) {
		return keys, err
	}
	for _, l := range s.links {
		more, failed := l.storage.List(ctx, prefix, recursive)
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			if named {
				continue
			}
			return nil, failed
		}
		keys = append(keys, more...)
	}
	if len(keys) == 0 {
		return nil, about("list", prefix, fs.ErrNotExist)
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Lock waits for a lock.
func (s *storage) Lock(ctx context.Context, name string) error {
	return s.patiently(ctx, func() error { return s.lockOnce(ctx, name) })
}

func (s *storage) lockOnce(ctx context.Context, name string) error {
	where, remote := s.homeOfSubject(subjectOfLock(name))
	switch where {
	case homeFleet:
		if err := remote.locks.lock(ctx, name); err != nil {
			return err
		}
		s.remember(name, func(ctx context.Context) error { return remote.locks.unlock(ctx, name) })
	case homeLocal:
		if err := s.local.Lock(ctx, name); err != nil {
			return err
		}
		s.remember(name, func(ctx context.Context) error { return s.local.Unlock(ctx, name) })
	default:
		return about("lock", name, errHomeUnknown)
	}
	return nil
}

// TryLock takes a lock if it is free.
func (s *storage) TryLock(ctx context.Context, name string) (bool, error) {
	where, remote := s.homeOfSubject(subjectOfLock(name))
	var got bool
	var err error
	switch where {
	case homeFleet:
		if got, err = remote.locks.try(ctx, name); got {
			s.remember(name, func(ctx context.Context) error { return remote.locks.unlock(ctx, name) })
		}
	case homeLocal:
		if got, err = s.local.TryLock(ctx, name); got {
			s.remember(name, func(ctx context.Context) error { return s.local.Unlock(ctx, name) })
		}
	default:
		err = about("lock", name, errHomeUnknown)
	}
	return got, err
}

// Unlock releases a lock where it was taken. If that fails it may be tried again.
func (s *storage) Unlock(ctx context.Context, name string) error {
	s.mutex.Lock()
	unlock := s.unlockers[name]
	s.mutex.Unlock()
	if unlock == nil {
		return fmt.Errorf("unlock %s: it is not held here", name)
	}
	// Forgotten before it is released: whoever gets it next is remembered after that.
	s.remember(name, nil)
	err := unlock(ctx)
	if err != nil {
		s.remember(name, unlock)
	}
	return err
}

// remember keeps how name is released; nil forgets it.
func (s *storage) remember(name string, unlock func(context.Context) error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if unlock == nil {
		delete(s.unlockers, name)
		return
	}
	s.unlockers[name] = unlock
}

var (
	_ caddy.Provisioner      = (*Storage)(nil)
	_ caddy.StorageConverter = (*Storage)(nil)
	_ caddyfile.Unmarshaler  = (*Storage)(nil)
	_ certmagic.Storage      = (*storage)(nil)
	_ certmagic.TryLocker    = (*storage)(nil)
)
