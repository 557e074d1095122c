package scafo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

const (
	// storageVersion is the version of the storage protocol that is spoken here.
	storageVersion = "1"
	// largestValue is the largest value that is read: what a node may be told to take at most (storage.valueBytes).
	// Certificate chains have a few kilobytes.
	largestValue = 40 << 20
	// largestListing is the longest listing that is read: 200,000 keys of 300 bytes.
	largestListing = 64 << 20
)

// remoteStorage is the storage protocol, version 1, against one node. It tries nothing twice but a lock that is taken:
// the node is on this machine, so a failure is a fault to report (storage.patiently is for who cannot live with one). Its
// methods answer as certmagic.Storage asks for.
type remoteStorage struct {
	fleet   string
	node    *node
	timeout time.Duration
	locks   *locks
	logger  func() *zap.Logger
	// faulty is whether the last answer was a fault, so that an outage is logged once. Callers keep some of their
	// failures to themselves: a certificate that cannot be stored would show up as a failed handshake only.
	faulty atomic.Bool
}

func newRemoteStorage(s settings, n *node) *remoteStorage {
	r := &remoteStorage{fleet: s.name, node: n, timeout: s.storageTimeout, logger: currentLog}
	r.locks = newLocks(r)
	return r
}

func (r *remoteStorage) log() *zap.Logger {
	return r.logger().With(zap.String("fleet", r.fleet))
}

// ask sends one request and hands its answer to read, within the timeout. A status other than the wanted one is a
// *refusal; where something was to be there, 404 is also fs.ErrNotExist.
func (r *remoteStorage) ask(ctx context.Context, method, target string, header http.Header, body io.Reader, want int, read func(io.Reader) error) error {
	err := r.askOnce(ctx, method, target, header, body, want, read)
	r.note(err)
	return err
}

// note logs the begin and the end of an outage.
func (r *remoteStorage) note(err error) {
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist) || isTaken(err):
		if r.faulty.CompareAndSwap(true, false) {
			r.log().Info("the storage of the fleet answers again")
		}
	case errors.Is(err, context.Canceled):
	case r.faulty.CompareAndSwap(false, true):
		r.log().Warn("the storage of the fleet fails", zap.Error(err))
	}
}

func (r *remoteStorage) askOnce(ctx context.Context, method, target string, header http.Header, body io.Reader, want int, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if header == nil {
		header = http.Header{}
	}
	header.Set("X-Scafo-Storage-Version", storageVersion)
	response, err := r.node.send(ctx, method, target, header, body)
	if err != nil {
		return err
	}
	if response.StatusCode != want {
		refusal := refused(response)
		if refusal.status == http.StatusNotFound && (method == http.MethodGet || method == http.MethodDelete) {
			return fmt.Errorf("%w: %w", fs.ErrNotExist, refusal)
		}
		return refusal
	}
	defer drained(response)
	if read == nil {
		return nil
	}
	return read(response.Body)
}

func (r *remoteStorage) Store(ctx context.Context, key string, value []byte) error {
	target, err := objectTarget(key)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	err = r.ask(ctx, http.MethodPut, target, header, bytes.NewReader(value), http.StatusNoContent, nil)
	return about("store", key, err)
}

func (r *remoteStorage) Load(ctx context.Context, key string) (value []byte, err error) {
	target, err := objectTarget(key)
	if err != nil {
		return nil, err
	}
	err = r.ask(ctx, http.MethodGet, target, nil, nil, http.StatusOK, func(body io.Reader) error {
		value, err = readBounded(body, largestValue)
		return err
	})
	if err != nil {
		return nil, about("load", key, err)
	}
	return value, nil
}

// remove removes the key and everything beneath it.
func (r *remoteStorage) remove(ctx context.Context, key string) error {
	target, err := objectTarget(key)
	if err != nil {
		return err
	}
	err = r.ask(ctx, http.MethodDelete, target, nil, nil, http.StatusNoContent, nil)
	return about("delete", key, err)
}

func (r *remoteStorage) List(ctx context.Context, prefix string, recursive bool) (keys []string, err error) {
	query := url.Values{"prefix": {prefix}, "recursive": {strconv.FormatBool(recursive)}}
	err = r.ask(ctx, http.MethodGet, "/v1/storage/list?"+query.Encode(), nil, nil, http.StatusOK, func(body io.Reader) error {
		return readJSON(body, &keys)
	})
	if err != nil {
		return nil, about("list", prefix, err)
	}
	return keys, nil
}

func (r *remoteStorage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	query := url.Values{"key": {key}}
	var stat struct {
		Modified   *time.Time `json:"modified"`
		Size       int64      `json:"size"`
		IsTerminal bool       `json:"isTerminal"`
	}
	err := r.ask(ctx, http.MethodGet, "/v1/storage/stat?"+query.Encode(), nil, nil, http.StatusOK, func(body io.Reader) error {
		return readJSON(body, &stat)
	})
	if err != nil {
		return certmagic.KeyInfo{}, about("stat", key, err)
	}
	info := certmagic.KeyInfo{Key: key, Size: stat.Size, IsTerminal: stat.IsTerminal}
	if stat.Modified != nil {
		info.Modified = *stat.Modified
	}
	return info, nil
}

func objectTarget(key string) (string, error) {
	path, err := checkedKey(key)
	return "/v1/storage/objects/" + path, err
}

func readJSON(body io.Reader, into any) error {
	text, err := readBounded(body, largestListing)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func readBounded(body io.Reader, largest int64) ([]byte, error) {
	value, err := io.ReadAll(io.LimitReader(body, largest+1))
	if err == nil && int64(len(value)) > largest {
		err = fmt.Errorf("the answer has more than %d MiB", largest>>20)
	}
	return value, err
}

// about says what failed, and keeps what an error is.
func about(operation, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", operation, key, err)
}
