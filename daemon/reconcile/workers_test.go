package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var key = workKey{Kind: forSandbox, ID: "a"}

// start runs workers until the test ends.
func start(t *testing.T, round workRound) *workers {
	p := newWorkers(time.Now, round)
	ctx, cancel := context.WithCancel(t.Context())
	p.Begin(ctx)
	t.Cleanup(func() {
		cancel()
		p.Wait()
	})
	return p
}

func TestARequestDuringARoundCausesAnotherOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rounds, at atomic.Int32
		release := make(chan struct{})
		p := start(t, func(_ context.Context, turn *workTurn) time.Time {
			if at.Add(1) != 1 {
				t.Error("two rounds of one key at a time")
			}
			defer at.Add(-1)
			rounds.Add(1)
			<-release
			return time.Time{}
		})
		p.Enqueue(key)
		synctest.Wait()
		for range 3 {
			p.Enqueue(key)
		}
		close(release)
		synctest.Wait()
		if n := rounds.Load(); n != 2 {
			t.Errorf("%d rounds after one request and three during its round; want 2", n)
		}
		if !p.Resting(key) {
			t.Error("the workers keep a key that rests")
		}
	})
}

func TestKeysOfDifferentKindsHaveRoundsAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int32
		release := make(chan struct{})
		p := start(t, func(context.Context, *workTurn) time.Time {
			now.Add(1)
			<-release
			return time.Time{}
		})
		p.Enqueue(key)
		p.Enqueue(workKey{Kind: forSandbox + 1, ID: key.ID})
		synctest.Wait()
		if n := now.Load(); n != 2 {
			t.Errorf("%d rounds of two keys at a time; want 2", n)
		}
		close(release)
	})
}

func TestARoundIsRepeatedAtItsTimeUnlessARequestComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begun := time.Now()
		p := start(t, func(context.Context, *workTurn) time.Time {
			at = append(at, time.Since(begun))
			if len(at) == 3 {
				return time.Time{}
			}
			return time.Now().Add(time.Minute)
		})
		p.Enqueue(key)
		time.Sleep(90 * time.Second)
		p.Enqueue(key)
		time.Sleep(time.Hour)
		synctest.Wait()
		if want := []time.Duration{0, time.Minute, 90 * time.Second}; fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("rounds at %v; want %v", at, want)
		}
	})
}

func TestAnInterruptCancelsThePartThatAllowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []error
		p := start(t, func(ctx context.Context, turn *workTurn) time.Time {
			ends = append(ends, turn.Interruptible(ctx, func(ctx context.Context) error {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Minute):
					return errors.New("its own error")
				}
			}))
			return time.Time{}
		})
		p.Enqueue(key)
		synctest.Wait()
		p.Enqueue(key) // a request alone cancels nothing
		synctest.Wait()
		if len(ends) != 0 {
			t.Fatalf("a request ended the round: %v", ends)
		}
		p.Interrupt(key)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(ends) != 2 || !errors.Is(ends[0], errInterrupted) || ends[1] == nil {
			t.Errorf("the parts ended with %v; want the interruption and then its own error", ends)
		}
	})
}

// TestAPartIsLeftOutIfItWasInterruptedBefore: a request alone, of an event for instance that the
// round itself caused, puts nothing off. Else such a round would never come to that part.
func TestAPartIsLeftOutIfItWasInterruptedBefore(t *testing.T) {
	for _, c := range []struct {
		name     string
		ask      func(*workers)
		leftOut  int
		finished int
	}{
		{"interrupted", func(p *workers) { p.Interrupt(key) }, 1, 1},
		{"asked", func(p *workers) { p.Enqueue(key) }, 0, 2},
		{"interrupted and asked", func(p *workers) { p.Interrupt(key); p.Enqueue(key) }, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rounds, parts, leftOut int
				var p *workers
				p = start(t, func(ctx context.Context, turn *workTurn) time.Time {
					if rounds++; rounds == 1 {
						c.ask(p)
					}
					err := turn.Interruptible(ctx, func(context.Context) error { parts++; return nil })
					if errors.Is(err, errInterrupted) {
						leftOut++
					} else if err != nil {
						t.Error(err)
					}
					return time.Time{}
				})
				p.Enqueue(key)
				synctest.Wait()
				if rounds != 2 || parts != c.finished || leftOut != c.leftOut {
					t.Errorf("%d rounds, %d parts, %d left out; want 2, %d and %d", rounds, parts, leftOut, c.finished, c.leftOut)
				}
			})
		})
	}
}

func TestNothingRunsBeforeBeginAndAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		p := newWorkers(time.Now, func(context.Context, *workTurn) time.Time {
			rounds++
			return time.Now().Add(time.Minute)
		})
		p.Enqueue(key)
		ctx, cancel := context.WithCancel(t.Context())
		p.Begin(ctx)
		synctest.Wait()
		if rounds != 0 {
			t.Error("a request before Begin was answered")
		}
		p.Enqueue(key)
		synctest.Wait()
		cancel()
		p.Wait()
		p.Enqueue(key)
		time.Sleep(time.Hour)
		synctest.Wait()
		if rounds != 1 {
			t.Errorf("%d rounds; want 1", rounds)
		}
	})
}

// Resting reports whether the key has no round, and no timer for one.
func (p *workers) Resting(key workKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers[key] == nil
}
