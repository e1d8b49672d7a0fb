package runtime

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestCallersShareARun(t *testing.T) {
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
	for s.Waiting() != 3 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	callers.Wait()
	if s.Wait(); runs != 1 || len(s.running) != 0 {
		t.Errorf("%d runs, %d are kept", runs, len(s.running))
	}
}

func TestTheLastCallerCancelsTheRun(t *testing.T) {
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
	for s.Waiting() != 2 {
		time.Sleep(time.Millisecond)
	}
	leave()
	for s.Waiting() != 1 {
		time.Sleep(time.Millisecond)
	}
	end()
	callers.Wait()
	if s.Wait(); len(s.running) != 0 {
		t.Errorf("%d are kept", len(s.running))
	}
	if started, err := s.Do(first, "a", untilCancelled, nil); started || !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has ended: %v, %v", started, err)
	}
}
