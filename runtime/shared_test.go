package runtime

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestCallersShareARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shared[string, int]
		gone := errors.New("gone")
		var runs int
		release := make(chan struct{})
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() {
				_, err := s.Do(t.Context(), "a", func(_ context.Context, report func(int)) error {
					runs++ // by one run at a time
					report(7)
					<-release
					return gone
				}, func(n int) {
					if n != 7 {
						t.Errorf("reported %d", n)
					}
				})
				if !errors.Is(err, gone) {
					t.Errorf("got %v", err)
				}
			})
		}
		if synctest.Wait(); s.Waiting() != 3 {
			t.Fatalf("%d callers wait", s.Waiting())
		}
		close(release)
		callers.Wait()
		if s.Wait(); runs != 1 || len(s.running) != 0 {
			t.Errorf("%d runs, %d are kept", runs, len(s.running))
		}
	})
}

func TestTheLastCallerCancelsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shared[string, int]
		untilCancelled := func(ctx context.Context, _ func(int)) error { <-ctx.Done(); return ctx.Err() }
		first, leave := context.WithCancel(t.Context())
		last, end := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for _, ctx := range []context.Context{first, last} {
			callers.Go(func() {
				if _, err := s.Do(ctx, "a", untilCancelled, nil); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		if synctest.Wait(); s.Waiting() != 2 {
			t.Fatalf("%d callers wait", s.Waiting())
		}
		leave()
		if synctest.Wait(); s.Waiting() != 1 {
			t.Fatalf("%d callers wait", s.Waiting())
		}
		end()
		callers.Wait()
		if s.Wait(); len(s.running) != 0 {
			t.Errorf("%d are kept", len(s.running))
		}
		if started, err := s.Do(first, "a", untilCancelled, nil); started || !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has ended: %v, %v", started, err)
		}
	})
}

// TestARunThatHasEndedOrWasCanceledIsNotJoined: its callers may still be about to leave.
func TestARunThatHasEndedOrWasCanceledIsNotJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Shared[string, int]
		ended := func(_ context.Context, report func(int)) error { report(1); return nil }
		reading := make(chan struct{})
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = s.Do(t.Context(), "a", ended, func(int) { <-reading }) })
		synctest.Wait()
		if started, err := s.Do(t.Context(), "a", ended, nil); !started || err != nil {
			t.Errorf("after the end: %v, %v", started, err)
		}
		close(reading)

		stopping := make(chan struct{})
		first, leave := context.WithCancel(t.Context())
		callers.Go(func() {
			_, _ = s.Do(first, "b", func(context.Context, func(int)) error { <-stopping; return nil }, nil)
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		if started, err := s.Do(t.Context(), "b", ended, nil); !started || err != nil {
			t.Errorf("after the cancellation: %v, %v", started, err)
		}
		close(stopping)
		callers.Wait()
	})
}
