// Package store keeps the daemon's durable state in one bbolt file: reserved
// ids, configs and events.
//
// One goroutine does all writes. It runs all waiting updates in one transaction
// (group commit), so concurrent callers share one fsync, and a single caller
// never waits for others to arrive. Reads run in their own transactions. An
// update is on the disk before its caller gets the result.
//
// schema.go shows the bucket tree; create.go explains the order of creation.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

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

// Options say where the database is and how it is opened.
type Options struct {
	// Path is the bbolt file. Open creates its directory if it does not exist.
	Path string
	// Sentinel is the file with the install id.
	Sentinel string
	// Logger gets messages about opening the database and about failures; nil
	// discards them.
	Logger *slog.Logger
	// CheckCommand returns the command that runs CheckMain(path) in a new process
	// after an unclean stop. If it is nil, the check runs in this process, which a
	// badly damaged file can crash.
	CheckCommand func(path string) *exec.Cmd
	// CheckTimeout bounds that check; 0 means 2 minutes.
	CheckTimeout time.Duration
	// LockTimeout is how long to wait while another process has the database open;
	// 0 means 2 s.
	LockTimeout time.Duration
	// AdoptLost creates a new database with the old install id if the database is
	// missing. Set it only if a user asks for it explicitly.
	AdoptLost bool
	// Now is the clock for Meta.created_at; nil means time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CheckTimeout == 0 {
		o.CheckTimeout = 2 * time.Minute
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = 2 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
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

// maxBatch bounds the updates in one transaction, and so the latency of one update.
const maxBatch = 256

// Update runs fn in a write transaction and returns when it is on the disk.
//
// Concurrent updates share one transaction; fn sees what the earlier ones in
// the batch wrote. Therefore:
//   - If fn returns an error, only fn's changes are undone, and Update returns
//     the error. The error never depends on a change that was itself undone.
//   - fn may run several times; only the last run counts. Outside of the
//     transaction it must assign state, not accumulate it, or use OnCommit.
//   - fn runs in the writer's goroutine. It must not block, call Update or View,
//     or, in tests, call FailNow. If fn panics, Update panics in the caller.
//
// If ctx is cancelled before the writer takes fn, fn never runs and Update
// returns ctx's error. After that, Update ignores ctx and returns fn's result.
//
// If the commit fails, nothing was changed, all updates of the batch get a fault
// STORE_FAILED, and later updates can succeed (for example once disk space is
// free). After a failed fsync it is unknown what has reached the disk: all later
// updates fail with ErrReadOnly until the database is opened again. Reads still
// work unless they would show the failed batch. After Close the error is ErrClosed.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	u := &update{fn: fn, done: make(chan struct{})}
	if !s.queue.add(u) {
		return closed()
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		if u.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
		<-u.done
	}
	if u.panicked != nil {
		panic(u.panicked)
	}
	return u.err
}

// write is the writer's goroutine. It returns when the queue is closed and empty.
func (s *Store) write() {
	var postponed []*update
	for {
		batch := s.queue.take(postponed, maxBatch)
		if len(batch) == 0 {
			return
		}
		postponed = nil
		for len(batch) > 0 {
			var again []*update
			batch, again = s.attempt(batch)
			postponed = append(postponed, again...)
		}
	}
}

// attempt runs a batch in one transaction and commits it. If a function fails
// after it wrote, attempt rolls back and returns the batch without that function
// as rest, to be tried again. A function that fails after others of the batch
// wrote is postponed: its error may depend on changes that are not committed
// yet, so it runs again in a later batch.
func (s *Store) attempt(batch []*update) (rest, postponed []*update) {
	if reason := s.stopped.Load(); reason != nil {
		finishAll(batch, readOnly(s.path, *reason))
		return nil, nil
	}
	b, err := s.db.Begin(true)
	if err != nil {
		s.stop(err)
		finishAll(batch, readOnly(s.path, err))
		return nil, nil
	}
	tx := &Tx{bolt: b, secretKeys: s.keys}
	ran := make([]*update, 0, len(batch))
	for i, u := range batch {
		before := tx.changes
		err := call(u, tx)
		if err == nil {
			ran = append(ran, u)
			continue
		}
		if isDamage(err) {
			_ = b.Rollback()
			s.stop(err)
			finishAll(append(ran, batch[i:]...), damaged(s.path, err))
			return nil, postponed
		}
		if before == 0 || u.panicked != nil {
			u.finish(err)
		} else {
			postponed = append(postponed, u)
		}
		if tx.changes != before {
			_ = b.Rollback()
			return append(ran, batch[i+1:]...), postponed
		}
	}
	s.finish(tx, ran)
	return nil, postponed
}

// call runs the function of u and catches its panic for the caller.
func call(u *update, tx *Tx) (err error) {
	defer func() {
		if r := recover(); r != nil {
			u.panicked = fmt.Sprintf("panic in an update: %v\n%s", r, debug.Stack())
			err = errors.New("panic")
			tx.changes++ // roll back whatever fn did
		}
	}()
	return guard(func() error { return u.fn(tx) })
}

// commitError returns the error for a batch whose commit failed. It stops the
// store if later updates cannot be trusted either.
func (s *Store) commitError(err error) error {
	switch {
	case isDamage(err):
		s.stop(err)
		return damaged(s.path, err)
	case syncFailed(err):
		err = fmt.Errorf("an earlier sync to the disk failed: %w", err)
		s.stop(err)
		return readOnly(s.path, err)
	}
	s.log.Error("commit failed; the transaction was rolled back", "path", s.path, "error", err)
	return commitFailed(s.path, err)
}

// commitBolt commits, and leaves no transaction open even if bbolt panics.
func commitBolt(b *bolt.Tx) error {
	err := guardBolt(b.Commit)
	if errors.Is(err, ErrDamaged) {
		_ = guardBolt(b.Rollback)
	}
	return err
}

func (s *Store) finish(tx *Tx, ran []*update) {
	if tx.changes == 0 {
		_ = tx.bolt.Rollback()
		finishAll(ran, nil)
		return
	}
	finishAll(ran, s.publish(tx))
}

// publish commits, and runs what OnCommit was given before any reader sees the commit.
func (s *Store) publish(tx *Tx) error {
	over := make(chan struct{})
	defer close(over)
	s.commit.Store(&over)
	id := int64(tx.bolt.ID())
	if err := commitBolt(tx.bolt); err != nil {
		return s.commitError(err)
	}
	for _, f := range tx.onCommit {
		f()
	}
	s.published.Store(id)
	return nil
}

func finishAll(list []*update, err error) {
	for _, u := range list {
		u.finish(err)
	}
}

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

// update is one call of Update that the writer has not finished.
type update struct {
	fn func(*Tx) error
	// taken is set once: by the writer when it dequeues the update, or by the
	// caller when it cancels it.
	taken atomic.Bool
	// done is closed when err and panicked are final.
	done     chan struct{}
	err      error
	panicked any
}

func (u *update) finish(err error) {
	u.err = err
	close(u.done)
}

// queue holds the updates that wait for the writer.
type queue struct {
	// mu guards waiting and closed; changed signals a change of either.
	mu      sync.Mutex
	changed *sync.Cond
	waiting []*update
	closed  bool
}

func (q *queue) init() { q.changed = sync.NewCond(&q.mu) }

// add returns false if the queue is closed.
func (q *queue) add(u *update) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, u)
	q.changed.Signal()
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// take appends waiting updates to first, up to limit in all. If first is empty,
// it waits for an update; it returns none only when the queue is closed and empty.
func (q *queue) take(first []*update, limit int) []*update {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := first
	for {
		for len(q.waiting) > 0 && len(batch) < limit {
			u := q.waiting[0]
			q.waiting[0] = nil
			q.waiting = q.waiting[1:]
			if u.taken.CompareAndSwap(false, true) {
				batch = append(batch, u)
			}
		}
		if len(batch) > 0 || q.closed && len(q.waiting) == 0 {
			return batch
		}
		if len(q.waiting) == 0 {
			q.changed.Wait()
		}
	}
}
