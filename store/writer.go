package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// maxBatch bounds one transaction, and so what a caller may have to wait for.
const maxBatch = 256

// Update runs fn in a write transaction and returns when that is on the disk.
//
// The transaction is shared with the other updates of the moment; fn sees what
// those before it wrote. Therefore:
//   - An error of fn takes back what fn did and nothing else, and is returned.
//     It is never based on another's change that did not last.
//   - fn may run several times; only the last run counts. It must set, not
//     add to, what lies outside of the transaction, or use OnCommit.
//   - fn runs in the writer's goroutine: no waiting, no Update or View inside,
//     and in tests no FailNow. A panic in it arises in the caller.
//
// When ctx ends before fn's turn, fn is never run and ctx's error returned.
// Once its turn has come, the result counts.
//
// If the commit fails, nothing was changed, all of the batch get a fault
// STORE_FAILED, and later updates can succeed (disk space). After a failed
// fsync it is unknown what has reached the disk: then all later updates fail
// with ErrReadOnly, reads go on and may show the last batch, and only opening the database again
// finds out. After Close the error is ErrClosed.
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

// write is the writer's goroutine. It ends when the queue is closed and empty.
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

// attempt runs a batch in one transaction and commits it. Where a function has
// failed after it wrote, nothing is committed, and rest is the batch without
// it, to be tried again. A function that failed after seeing what others of
// the batch wrote is postponed: it runs again when that has been decided.
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
	tx := &Tx{bolt: b}
	ran := make([]*update, 0, len(batch))
	for i, u := range batch {
		before := tx.touched
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
		if tx.touched != before {
			_ = b.Rollback()
			return append(ran, batch[i+1:]...), postponed
		}
	}
	s.commit(tx, ran)
	return nil, postponed
}

// call runs the function of u and catches its panic for the caller.
func call(u *update, tx *Tx) (err error) {
	defer func() {
		if r := recover(); r != nil {
			u.panicked = fmt.Sprintf("panic in an update: %v\n%s", r, debug.Stack())
			err = errors.New("panic")
			tx.touched++ // whatever it did must go
		}
	}()
	return guard(func() error { return u.fn(tx) })
}

func (s *Store) commit(tx *Tx, ran []*update) {
	if tx.touched == 0 {
		_ = tx.bolt.Rollback()
		finishAll(ran, nil)
		return
	}
	if err := commitBolt(tx.bolt); err != nil {
		finishAll(ran, s.commitError(err))
		return
	}
	for _, f := range tx.onCommit {
		f()
	}
	finishAll(ran, nil)
}

// commitBolt leaves no transaction open, whatever happens.
func commitBolt(b *bolt.Tx) error {
	err := guardBolt(b.Commit)
	if errors.Is(err, ErrDamaged) {
		_ = guardBolt(b.Rollback)
	}
	return err
}

// commitError decides what a failed commit means for the updates after it.
func (s *Store) commitError(err error) error {
	switch {
	case isDamage(err):
		s.stop(err)
		return damaged(s.path, err)
	case syncFailed(err):
		err = fmt.Errorf("a write that did not reach the disk: %w", err)
		s.stop(err)
		return readOnly(s.path, err)
	}
	s.log.Error("a transaction was not committed", "path", s.path, "error", err)
	return commitFailed(s.path, err)
}

func finishAll(list []*update, err error) {
	for _, u := range list {
		u.finish(err)
	}
}
