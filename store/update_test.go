package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

var errRefused = errors.New("refused")

// together runs updates in one batch, in the given order, and returns their
// errors. It blocks the writer until all of them wait. It works only inside a
// synctest bubble.
func together(s *Store, fns ...func(tx *Tx) error) []error {
	gate := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = s.Update(context.Background(), func(*Tx) error { <-gate; return nil })
	})
	synctest.Wait()
	errs := make([]error, len(fns))
	for i, fn := range fns {
		all.Go(func() { errs[i] = s.Update(context.Background(), fn) })
		synctest.Wait()
	}
	close(gate)
	all.Wait()
	return errs
}

// inBubble runs body with a store whose goroutines are all in a synctest bubble.
func inBubble(t *testing.T, body func(t *testing.T, s *Store)) {
	o := testOptions(t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		body(t, s)
		closeStore(t, s)
	})
}

func reserve(id string) func(tx *Tx) error {
	return func(tx *Tx) error { return tx.ReserveSandbox(id, testTime) }
}

func isReserved(t *testing.T, s *Store, id string) (ok bool) {
	t.Helper()
	mustView(t, s, func(tx *Tx) { _, ok = tx.SandboxReserved(id) })
	return ok
}

func TestAFailingUpdateRollsBackOnlyItself(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		errs := together(s,
			reserve("a"),
			func(tx *Tx) error { return errors.Join(tx.ReserveSandbox("half", testTime), errRefused) },
			reserve("b"),
		)
		if errs[0] != nil || !errors.Is(errs[1], errRefused) || errs[2] != nil {
			t.Fatalf("errors %v", errs)
		}
		if !isReserved(t, s, "a") || !isReserved(t, s, "b") || isReserved(t, s, "half") {
			t.Fatal("wrong ids are reserved")
		}
	})
}

func TestUpdatesThatWaitTogetherShareOneTransaction(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		var ids []int
		note := func(tx *Tx) error {
			ids = append(ids, tx.bolt.ID())
			return tx.put(bucketExecIDs, []byte("x"), number(1))
		}
		together(s, note, note, note)
		if len(ids) != 3 || ids[0] != ids[1] || ids[1] != ids[2] {
			t.Fatalf("transactions %v", ids)
		}
	})
}

func TestAnErrorNeverDependsOnAChangeThatWasRolledBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		// first succeeds in the first run of the batch and fails in the next.
		runs := 0
		first := func(tx *Tx) error {
			if runs++; runs > 1 {
				return errRefused
			}
			return tx.ReserveSandbox("a", testTime)
		}
		second := reserve("a")
		failing := func(tx *Tx) error { return errors.Join(tx.ReserveSandbox("z", testTime), errRefused) }
		errs := together(s, first, second, failing)
		if errs[1] != nil {
			t.Fatalf("the second got %v although nobody holds the id", errs[1])
		}
		if !errors.Is(errs[0], errRefused) || !errors.Is(errs[2], errRefused) || !isReserved(t, s, "a") {
			t.Fatalf("errors %v", errs)
		}
	})
}

func TestOfTwoEqualReservationsInOneBatchOneWins(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		errs := together(s, reserve("a"), reserve("a"), reserve("b"))
		if errs[0] != nil || errs[2] != nil {
			t.Fatalf("errors %v", errs)
		}
		wantFault(t, errs[1], ErrReserved)
		if !errdefs.IsAlreadyExists(errs[1]) || fault.ReasonOf(errs[1]) != agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS {
			t.Fatalf("error %v", errs[1])
		}
	})
}

func TestOnCommitRunsInOrderAfterTheCommitAndBeforeAnyReturn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		var order []string
		var mu sync.Mutex // guards order
		note := func(what string) { mu.Lock(); order = append(order, what); mu.Unlock() }
		step := func(id string) func(*Tx) error {
			return func(tx *Tx) error {
				tx.OnCommit(func() {
					synctest.Wait()                        // every Update that can return has returned
					_ = s.db.View(func(b *bolt.Tx) error { // a View of the store would wait for the end of this
						if _, reserved := (&Tx{bolt: b}).SandboxReserved(id); !reserved {
							t.Errorf("%s: not committed yet", id)
						}
						return nil
					})
					note(id)
				})
				return tx.ReserveSandbox(id, testTime)
			}
		}
		gate := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { _ = s.Update(context.Background(), func(*Tx) error { <-gate; return nil }) })
		synctest.Wait()
		for _, fn := range []func(*Tx) error{
			step("a"),
			func(tx *Tx) error { tx.OnCommit(func() { note("never") }); return errRefused },
			step("b"),
		} {
			all.Go(func() {
				if s.Update(context.Background(), fn) == nil {
					note("return")
				}
			})
			synctest.Wait()
		}
		close(gate)
		all.Wait()
		if want := []string{"a", "b", "return", "return"}; !slices.Equal(order, want) {
			t.Fatalf("order %v, want %v", order, want)
		}
	})
}

// A reader of an event that then reads the sandbox in memory must find nothing older there,
// because no further event may come.
func TestAReaderSeesACommitOnceOnCommitHasRun(t *testing.T) {
	s := newStore(t)
	var passedOn atomic.Uint64
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for seen := uint64(0); seen < 50; {
				err := s.View(t.Context(), func(tx *Tx) error { seen = tx.LastPosition(); return nil })
				if passed := passedOn.Load(); err != nil || seen > passed {
					t.Errorf("a reader sees event %d, and only %d were passed on (%v)", seen, passed, err)
					return
				}
			}
		})
	}
	for range 50 {
		mustUpdate(t, s, func(tx *Tx) error {
			ev := event("box", agboxv1.EventType_SANDBOX_PREPARING)
			tx.OnCommit(func() {
				runtime.Gosched() // to the readers
				passedOn.Store(ev.GetPosition())
			})
			return tx.AppendEvent(ev)
		})
	}
	readers.Wait()
}

// A reader must not wait for a commit that it does not see: the commit may wait for the reader,
// to map a file that has grown.
func TestAReaderWaitsOnlyForWhatItSeesAndAsLongAsItsCallerDoes(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, reserve("a"))
	closeStore(t, s)
	s, err := Open(t.Context(), testOptions(filepath.Dir(s.path)))
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	mustView(t, s, func(tx *Tx) {
		if id := int64(tx.bolt.ID()); id != s.published.Load() {
			t.Errorf("after the start a reader is at %d, and all is published up to %d", id, s.published.Load())
		}
	})
	mustUpdate(t, s, func(tx *Tx) error {
		tx.OnCommit(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(time.Millisecond, cancel).Stop()
			if err := s.View(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("a reader whose caller has gone gets %v", err)
			}
		})
		return tx.ReserveSandbox("b", testTime)
	})
}

type overlay struct{}

func TestValuesAreSharedByTheBatchAndDiscardedWhenItRunsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		var seen []any
		count := func(id string) func(tx *Tx) error {
			return func(tx *Tx) error {
				n, _ := tx.Value(overlay{}).(int)
				tx.SetValue(overlay{}, n+1)
				tx.OnCommit(func() { seen = append(seen, n) })
				return tx.ReserveSandbox(id, testTime)
			}
		}
		spoil := func(tx *Tx) error { tx.SetValue(overlay{}, 100); return errRefused }
		together(s, count("a"), spoil, count("b"))
		if !slices.Equal(seen, []any{0, 1}) {
			t.Fatalf("scratch values %v", seen)
		}
		together(s, count("c"))
		if seen[2] != 0 {
			t.Fatalf("the next batch began with %v", seen[2])
		}
	})
}

func TestAFailureAfterWritingThroughAValueRunsTheBatchAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		var kept []string
		add := func(id string, err error) func(tx *Tx) error {
			return func(tx *Tx) error {
				m, _ := tx.Value(overlay{}).(map[string]bool)
				if m == nil {
					m = map[string]bool{}
					tx.SetValue(overlay{}, m)
				}
				m[id] = true
				tx.OnCommit(func() {
					kept = kept[:0]
					for id := range m {
						kept = append(kept, id)
					}
				})
				return err
			}
		}
		together(s, add("a", nil),
			func(tx *Tx) error {
				if m, ok := tx.Value(overlay{}).(map[string]bool); ok {
					m["spoilt"] = true
				}
				return errRefused
			},
			add("b", nil))
		slices.Sort(kept)
		if !slices.Equal(kept, []string{"a", "b"}) {
			t.Fatalf("kept %v", kept)
		}
	})
}

func TestAnUpdateCancelledInTheQueueIsNeverRun(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		gate := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { _ = s.Update(context.Background(), func(*Tx) error { <-gate; return nil }) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		all.Go(func() { err = s.Update(ctx, func(*Tx) error { t.Error("it ran"); return nil }) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		close(gate)
		all.Wait()
	})
}

func TestAnUpdateCancelledWhileItRunsReturnsItsResult(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		gate := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var err error
		all.Go(func() {
			err = s.Update(ctx, func(tx *Tx) error { <-gate; return tx.ReserveSandbox("a", testTime) })
		})
		synctest.Wait()
		cancel()
		close(gate)
		all.Wait()
		if err != nil || !isReserved(t, s, "a") {
			t.Fatalf("error %v", err)
		}
	})
}

func TestCloseRunsWaitingUpdatesAndRefusesNewOnes(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		gate := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { _ = s.Update(context.Background(), func(*Tx) error { <-gate; return nil }) })
		synctest.Wait()
		var waiting error
		all.Go(func() { waiting = s.Update(context.Background(), reserve("a")) })
		synctest.Wait()
		all.Go(func() { closeStore(t, s) })
		synctest.Wait()
		late := s.Update(context.Background(), reserve("b"))
		wantFault(t, late, ErrClosed)
		close(gate)
		all.Wait()
		if waiting != nil {
			t.Fatalf("the waiting update: %v", waiting)
		}
		wantFault(t, s.View(t.Context(), func(*Tx) error { return nil }), ErrClosed)
		wantFault(t, s.Update(t.Context(), reserve("c")), ErrClosed)
	})
}

func TestAPanicReachesOnlyItsOwnCaller(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		caught, gate := "", make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			defer func() { caught = fmt.Sprint(recover()) }()
			_ = s.Update(context.Background(), func(tx *Tx) error {
				<-gate
				_ = tx.ReserveSandbox("gone", testTime)
				panic("boom")
			})
		})
		synctest.Wait()
		var other error
		all.Go(func() { other = s.Update(context.Background(), reserve("b")) })
		synctest.Wait()
		close(gate)
		all.Wait()
		if other != nil || !isReserved(t, s, "b") {
			t.Fatalf("the other update: %v", other)
		}
		if !strings.Contains(caught, "boom") || isReserved(t, s, "gone") {
			t.Fatalf("caught %q", caught)
		}
		mustUpdate(t, s, reserve("c"))
	})
}

func TestAnUpdateThatOnlyReadsCommitsNothing(t *testing.T) {
	s := newStore(t)
	txid := func() (id int) {
		mustView(t, s, func(tx *Tx) { id = tx.bolt.ID() })
		return id
	}
	before := txid()
	mustUpdate(t, s, func(tx *Tx) error { tx.SandboxIDs(); return nil })
	if err := s.Update(t.Context(), func(*Tx) error { return errRefused }); !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	if after := txid(); after != before {
		t.Fatalf("transaction %d became %d", before, after)
	}
}

func TestManyConcurrentUpdatesEachGetTheirOwnResult(t *testing.T) {
	s := newStore(t)
	var all sync.WaitGroup
	const callers, rounds = 512, 4
	for c := range callers {
		all.Go(func() {
			id := numbered("s", c)
			for r := range rounds {
				err := s.Update(t.Context(), func(tx *Tx) error {
					if err := tx.AppendEvent(event(id, agboxv1.EventType_SANDBOX_PREPARING)); err != nil {
						return err
					}
					if (c+r)%7 == 0 {
						return fmt.Errorf("%s: %w", id, errRefused)
					}
					return nil
				})
				if refused := (c+r)%7 == 0; refused != errors.Is(err, errRefused) || refused && !strings.HasPrefix(err.Error(), id) {
					t.Errorf("%s round %d: %v", id, r, err)
				}
			}
		})
	}
	all.Wait()
	mustView(t, s, func(tx *Tx) {
		total := uint64(0)
		for c := range callers {
			want := uint64(0)
			for r := range rounds {
				if (c+r)%7 != 0 {
					want++
				}
			}
			if got := tx.LastSequence(numbered("s", c)); got != want {
				t.Errorf("sandbox %d has %d events, want %d", c, got, want)
			}
			total += want
		}
		if tx.LastPosition() != total {
			t.Errorf("last position %d, want %d", tx.LastPosition(), total)
		}
	})
}
