package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

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

// commitBolt commits, and leaves no transaction open even if bbolt panics.
func commitBolt(b *bolt.Tx) error {
	err := guardBolt(b.Commit)
	if errors.Is(err, ErrDamaged) {
		_ = guardBolt(b.Rollback)
	}
	return err
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

func finishAll(list []*update, err error) {
	for _, u := range list {
		u.finish(err)
	}
}
