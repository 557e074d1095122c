package scafo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
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
// so reads that find nothing locally look there, without letting a fleet that does not answer stand in the way. In the
// same way a subject that is named may have been kept locally before. Deletes go where a read would find the value.
type storage struct {
	links []*link
	local localStorage
	// lifetime ends with the configuration; nil if there is none.
	lifetime <-chan struct{}
	// retry is the first pause of a caller that has time while a node fails.
	retry time.Duration

	mutex sync.Mutex
	// held are the places of the locks that are held, by their names.
	held map[string]place
	// pinned are the places of the subjects whose issuance lock is held. A document may change between Lock and Unlock, and
	// must not part a private key from its certificate.
	pinned map[subject]place
}

// place is where the keys of a subject are; remote is nil unless that is a fleet.
type place struct {
	home   home
	remote *remoteStorage
}

func newStorage(links []*link, local localStorage) *storage {
	return &storage{links: links, local: local, retry: firstRetry, held: map[string]place{}, pinned: map[subject]place{}}
}

// String is what the log shows of it.
func (s *storage) String() string {
	return fmt.Sprintf("scafo, %d fleets, and %v", len(s.links), s.local)
}

// home is the place for the subject of key, and this disk for a key without one.
func (s *storage) home(key string) place {
	of, ok := subjectOfKey(key)
	return s.homeOfSubject(of, ok)
}

func (s *storage) homeOfSubject(of subject, named bool) place {
	if !named {
		return place{home: homeLocal}
	}
	s.mutex.Lock()
	at, ok := s.pinned[of]
	s.mutex.Unlock()
	if ok {
		return at
	}
	where, i := homeOf(knownOf(s.links), of)
	if where != homeFleet {
		return place{home: where}
	}
	return place{where, s.links[i].storage}
}

// Store writes value.
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	switch at := s.home(key); at.home {
	case homeFleet:
		return at.remote.Store(ctx, key, value)
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

// read is Load or Stat. Only certificates are waited for: a caller who misses a staple or a challenge does without. A
// damaged certificate is as good as none, and heals by being ordered anew.
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
	if isDamaged(err) {
		// Whoever reads one that is written in the configuration gives up for anything but a missing certificate.
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return value, err
}

// readOnce reads from the fleet that names the subject of key and then locally, or else locally and then from any fleet.
func readOnce[T any](ctx context.Context, s *storage, operation, key string,
	local func(context.Context, string) (T, error),
	remote func(*remoteStorage, context.Context, string) (T, error),
) (T, error) {
	at := s.home(key)
	if at.home == homeFleet {
		value, err := remote(at.remote, ctx, key)
		if !errors.Is(err, fs.ErrNotExist) {
			return value, err
		}
		if here, failed := local(ctx, key); failed == nil && s.moveUp(ctx, at.remote, key) {
			return here, nil
		}
		return value, err
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
	if at.home == homeUnknown {
		return value, about(operation, key, errHomeUnknown)
	}
	return value, err
}

// moveUp moves the certificate that key is a file of to the fleet that names its subject by now, so that all ingresses of
// the fleet have it. False if it must not be read here: a certificate of that subject is being issued, or has been, and
// its files must not be mixed with those here. Whatever is no file of a certificate is read where it is, and so is one
// that cannot be moved now.
func (s *storage) moveUp(ctx context.Context, to *remoteStorage, key string) bool {
	of, named := subjectOfKey(key)
	if !named || !isCertificate(key) {
		return true
	}
	lock := of.lock()
	got, err := to.locks.try(ctx, lock)
	if err != nil {
		return true
	}
	if !got {
		return false
	}
	defer func() {
		// The release is tried once: a lock without signs of life is free again after a while.
		if err := to.locks.unlock(context.WithoutCancel(ctx), lock); err != nil {
			to.log().Warn("the lock of a certificate that moved to the fleet is not released", zap.String("lock", lock), zap.Error(err))
		}
	}()
	if _, err := to.Stat(ctx, key); !errors.Is(err, fs.ErrNotExist) {
		return err != nil
	}
	site := path.Dir(key)
	files, err := s.local.List(ctx, site, true)
	for _, file := range files {
		if err == nil {
			err = s.copyUp(ctx, to, file)
		}
	}
	if err == nil {
		// What stays would be read first, and be out of date, when nobody names the subject any more.
		err = s.local.Delete(ctx, site)
	}
	if err != nil {
		to.log().Warn("a certificate on this disk cannot be moved to the fleet", zap.String("key", site), zap.Error(err))
	}
	return true
}

func (s *storage) copyUp(ctx context.Context, to *remoteStorage, file string) error {
	value, err := s.local.Load(ctx, file)
	if err != nil {
		return err
	}
	return to.Store(ctx, file, value)
}

// Exists tells whether key is there as a value or as a prefix. While a node fails it is taken to be: what then cannot be
// read is reported, and what is not there is ordered anew, although it may be valid. A damaged value is as good as none.
func (s *storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil || mayPass(err) || errors.Is(err, errHomeUnknown)
}

// isDamaged tells whether the node says that what it keeps is no value.
func isDamaged(err error) bool {
	var answered *refusal
	return errors.As(err, &answered) && answered.status == http.StatusBadGateway
}

// Delete removes key and everything beneath it, where a read would find it. Other copies stay: an old one must not take a
// newer one with it.
func (s *storage) Delete(ctx context.Context, key string) error {
	at := s.home(key)
	if at.home == homeFleet {
		if err := at.remote.remove(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return s.local.Delete(ctx, key)
	}
	_, named := subjectOfKey(key)
	if !named && !isSpread(key) {
		return s.local.Delete(ctx, key)
	}
	if named {
		if _, err := s.local.Stat(ctx, key); !errors.Is(err, fs.ErrNotExist) {
			return s.local.Delete(ctx, key)
		}
	}
	failures := []error{s.local.Delete(ctx, key)}
	for _, l := range s.links {
		failed := l.storage.remove(ctx, key)
		if failed == nil && named {
			return nil
		}
		if !errors.Is(failed, fs.ErrNotExist) {
			failures = append(failures, failed)
		}
	}
	return errors.Join(failures...)
}

// List names the keys under prefix. Under a prefix that several subjects share, all fleets have to answer: a listing
// that lacks a fleet would look like one whose certificates are gone. Of what no fleet names, an empty local directory is no
// missing one, so that whoever cleans up finds and removes it.
func (s *storage) List(ctx context.Context, prefix string, recursive bool) ([]string, error) {
	if at := s.home(prefix); at.home == homeFleet {
		keys, err := at.remote.List(ctx, prefix, recursive)
		if errors.Is(err, fs.ErrNotExist) {
			if here, failed := s.local.List(ctx, prefix, recursive); failed == nil && len(here) > 0 {
				return here, nil
			}
		}
		return keys, err
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
	if len(keys) == 0 && err != nil {
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
	at := s.homeOfSubject(subjectOfLock(name))
	var err error
	switch at.home {
	case homeFleet:
		err = at.remote.locks.lock(ctx, name)
	case homeLocal:
		err = s.local.Lock(ctx, name)
	default:
		err = about("lock", name, errHomeUnknown)
	}
	if err == nil {
		s.hold(name, at)
	}
	return err
}

// TryLock takes a lock if it is free.
func (s *storage) TryLock(ctx context.Context, name string) (got bool, err error) {
	at := s.homeOfSubject(subjectOfLock(name))
	switch at.home {
	case homeFleet:
		got, err = at.remote.locks.try(ctx, name)
	case homeLocal:
		got, err = s.local.TryLock(ctx, name)
	default:
		err = about("lock", name, errHomeUnknown)
	}
	if got {
		s.hold(name, at)
	}
	return got, err
}

// Unlock releases a lock where it was taken. If that fails it may be tried again.
func (s *storage) Unlock(ctx context.Context, name string) error {
	// Forgotten before it is released: whoever gets it next is remembered after that.
	at, ok := s.letGo(name)
	if !ok {
		return fmt.Errorf("unlock %s: it is not held here", name)
	}
	var err error
	if at.home == homeFleet {
		err = at.remote.locks.unlock(ctx, name)
	} else {
		err = s.local.Unlock(ctx, name)
	}
	if err != nil {
		s.keep(name, at)
	}
	return err
}

// keep remembers a lock that may not be released yet, unless somebody else in this process has taken it meanwhile. The keys
// of its subject are where the documents say again.
func (s *storage) keep(name string, at place) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, taken := s.held[name]; !taken {
		s.held[name] = at
	}
}

// hold remembers where a lock was taken, and keeps the keys of its subject there.
func (s *storage) hold(name string, at place) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.held[name] = at
	if of, ok := subjectOfLock(name); ok {
		s.pinned[of] = at
	}
}

func (s *storage) letGo(name string) (at place, ok bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	at, ok = s.held[name]
	delete(s.held, name)
	if of, named := subjectOfLock(name); named {
		delete(s.pinned, of)
	}
	return at, ok
}

var (
	_ caddy.Provisioner      = (*Storage)(nil)
	_ caddy.StorageConverter = (*Storage)(nil)
	_ caddyfile.Unmarshaler  = (*Storage)(nil)
	_ certmagic.Storage      = (*storage)(nil)
	_ certmagic.TryLocker    = (*storage)(nil)
)
