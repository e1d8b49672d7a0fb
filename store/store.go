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

	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Store is an open database. All methods may be called from any goroutine.
type Store struct {
	path string
	log  *slog.Logger
	db   *bolt.DB
	meta *storev1.Meta

	queue  queue
	writer sync.WaitGroup

	// stopped is the reason why nothing is written any more; nil while all is well.
	stopped atomic.Pointer[error]

	closing  sync.Once
	closeErr error
}

// InstallID is the random id of the data directory.
func (s *Store) InstallID() string { return s.meta.GetInstallId() }

// Meta describes the database: schema version, install id, time of creation.
func (s *Store) Meta() *storev1.Meta { return proto.CloneOf(s.meta) }

// View runs fn in a read transaction of its own. It sees what was committed
// before it began. fn must be short: pages that it can see are not used again
// while it runs, and Close waits for it. It must call neither Update nor View.
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
		return fn(&Tx{bolt: b})
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

// beginError keeps the errors of bbolt apart from those of a caller's function.
type beginError struct{ error }

func (e *beginError) Unwrap() error { return e.error }

// Close runs the updates that are waiting, refuses new ones, waits for readers
// and closes the file. The second call does nothing and returns the same.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.queue.close()
		s.writer.Wait()
		if s.stopped.Load() == nil {
			// Still under the lock: nobody else can change the file in between.
			if err := markClean(s.path); err != nil {
				s.log.Warn("database not marked as cleanly closed; the next start checks it", "path", s.path, "error", err)
			}
		}
		if err := s.db.Close(); err != nil {
			s.closeErr = fmt.Errorf("close the database %s: %w", s.path, err)
		}
	})
	return s.closeErr
}

// stop ends all writing until the database is opened again. The first reason stays.
func (s *Store) stop(reason error) {
	if s.stopped.CompareAndSwap(nil, &reason) {
		s.log.Error("the database takes no more changes", "path", s.path, "error", reason)
	}
}
