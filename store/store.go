package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/secrets"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Store is an open database. All methods may be called from any goroutine.
type Store struct {
	path string
	keys secrets.Keys
	log  *slog.Logger
	db   *bolt.DB
	meta *storev1.Meta

	queue  queue
	writer sync.WaitGroup

	// commit is closed once the newest commit is over and what OnCommit was given has run;
	// nil before the first.
	commit atomic.Pointer[chan struct{}]
	// published is the newest transaction of which that is true.
	published atomic.Int64

	// stopped is the reason why the store refuses writes; nil if it accepts them.
	stopped atomic.Pointer[error]

	closing  sync.Once
	closeErr error
}

// InstallID is the random id of the data directory.
func (s *Store) InstallID() string { return s.meta.GetInstallId() }

// Meta returns the schema version, install id and creation time of the database.
func (s *Store) Meta() *storev1.Meta { return proto.CloneOf(s.meta) }

// Engine returns the identity of the install's engine, or nil before the first contact.
func (s *Store) Engine(ctx context.Context) (*storev1.Engine, error) {
	var engine *storev1.Engine
	err := s.View(ctx, func(tx *Tx) error {
		meta, err := tx.Meta()
		engine = meta.GetEngine()
		return err
	})
	return engine, err
}

// SetEngine records the identity of the install's engine.
func (s *Store) SetEngine(ctx context.Context, engine *storev1.Engine) error {
	return s.Update(ctx, func(tx *Tx) error {
		meta, err := tx.Meta()
		if err != nil {
			return err
		}
		meta.Engine = engine
		return tx.putMessage(bucketMeta, keyMeta, meta)
	})
}

// View runs fn in its own read transaction, which sees what was committed before
// it began. What it sees is on the disk, and has been passed on by OnCommit: who reads the
// store and then what is in memory finds nothing older there. After a failed sync bbolt may
// show the transaction whose callers were refused; then View fails with ErrReadOnly as
// Update does. fn must be short: while
// it runs, bbolt cannot reuse the pages that it sees, and Close waits for it. Neither fn
// nor a function given to OnCommit may call Update or View, nor may a caller hold a lock
// that such a function takes.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := guard(func() error {
		b, err := s.db.Begin(false)
		if err != nil {
			return &beginError{err}
		}
		defer func() { _ = b.Rollback() }()
		if over := s.commit.Load(); over != nil && int64(b.ID()) > s.published.Load() {
			select { // bbolt shows a commit while it is still being synced
			case <-*over:
			case <-ctx.Done():
				return ctx.Err()
			}
			if int64(b.ID()) > s.published.Load() { // its last sync failed
				return readOnly(s.path, *s.stopped.Load())
			}
		}
		return fn(&Tx{bolt: b, secretKeys: s.keys})
	})
	var begin *beginError
	switch {
	case errors.As(err, &begin) && errors.Is(err, berrors.ErrDatabaseNotOpen):
		return closed()
	case errors.As(err, &begin):
		return readOnly(s.path, begin.error)
	case isDamage(err):
		s.stop(err)
		return damaged(s.path, err)
	}
	return err
}

// beginError distinguishes bbolt's errors from those of the caller's function.
type beginError struct{ error }

func (e *beginError) Unwrap() error { return e.error }

// Close refuses new updates, runs the waiting ones, waits for readers and closes
// the file. Further calls do nothing and return the same error.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.queue.close()
		s.writer.Wait()
		if s.stopped.Load() == nil {
			// The lock is still held, so no other process can change the file between
			// this and db.Close.
			if err := markClean(s.path); err != nil {
				s.log.Warn("cannot mark the database as cleanly closed; the next start checks it", "path", s.path, "error", err)
			}
		}
		if err := s.db.Close(); err != nil {
			s.closeErr = fmt.Errorf("close the database %s: %w", s.path, err)
		}
	})
	return s.closeErr
}

// stop makes the store read-only until it is opened again. It keeps the first reason.
func (s *Store) stop(reason error) {
	if s.stopped.CompareAndSwap(nil, &reason) {
		s.log.Error("the database accepts no more changes", "path", s.path, "error", reason)
	}
}
