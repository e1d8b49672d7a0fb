package agents

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// watchdog notices that a daemon stands still: something that it was asked has no answer
// although the machine gets on. It counts what the machine does, processes and pauses of a
// second, and not the time, so a slow machine is no standstill.
type watchdog struct {
	// bound is how many ticks an answer may take.
	bound int
	// mu guards the fields below.
	mu   sync.Mutex
	tick int
	// open has since which tick each question waits for its answer.
	open map[int]question
	next int
	// longest is the question that took longest of those that were answered.
	longest answered
}

type question struct {
	what  string
	tick  int
	asked time.Time
}

type answered struct {
	what string
	took time.Duration
}

func newWatchdog(bound int) *watchdog { return &watchdog{bound: bound, open: make(map[int]question)} }

// ask notes a question. The function that it returns notes the answer.
func (w *watchdog) ask(what string) (answered func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.next
	w.next++
	w.open[id] = question{what, w.tick, time.Now()}
	return func() { w.answer(id) }
}

func (w *watchdog) answer(id int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.open[id]
	delete(w.open, id)
	if took := time.Since(q.asked); took > w.longest.took {
		w.longest = answered{q.what, took}
	}
}

// turn is one tick. It returns the question that has waited for too long, or "".
func (w *watchdog) turn() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tick++
	for _, q := range w.open {
		if w.tick-q.tick > w.bound {
			return q.what
		}
	}
	return ""
}

// run ticks until the context ends. It returns what had no answer, or "".
func (w *watchdog) run(ctx context.Context) string {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return ""
		case <-second.C:
		}
		// A process that starts and ends is what the machine still does.
		if err := exec.CommandContext(ctx, "true").Run(); err != nil {
			continue
		}
		if what := w.turn(); what != "" {
			return what
		}
	}
}

// goroutines ends the daemon of an install and returns the stacks of all its goroutines.
func goroutines(t *testing.T, in *harness.Install) string {
	t.Helper()
	pid := in.LockedBy(t)
	_ = syscall.Kill(pid, syscall.SIGQUIT)
	_ = syscall.Kill(pid, syscall.SIGCONT) // it may be stopped
	log := filepath.Join(in.Home, "data", "agboxd.log")
	var stacks string
	harness.EventuallyOr(t, func() bool {
		raw, _ := os.ReadFile(log)
		at := strings.LastIndex(string(raw), "SIGQUIT: quit")
		if at >= 0 {
			stacks = string(raw[at:])
		}
		return at >= 0 && syscall.Kill(pid, 0) != nil
	}, func() { stacks += fmt.Sprintf("\n(the daemon, pid %d, did not end)", pid) })
	return stacks
}

func TestTheWatchdogShowsTheGoroutinesOfADaemonThatStandsStill(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	ctx, c := harness.Bounded(t), in.Client(t)
	w := newWatchdog(2)
	ask := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		answered := w.ask("a ping")
		_, err := c.Ping(ctx)
		if err == nil {
			answered()
		}
		return err
	}
	if err := ask(harness.Patience); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(in.LockedBy(t), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { // ends with the bound of the call
		defer close(stopped)
		for ask(5*time.Second) == nil { // its threads do not stop at once
		}
	}()
	if what := w.run(ctx); what != "a ping" {
		t.Errorf("what has no answer is %q", what)
	}
	if stacks := goroutines(t, in); strings.Count(stacks, "\ngoroutine ") < 5 || !strings.Contains(stacks, "daemon.Run(") {
		t.Errorf("the stacks are\n%s", stacks)
	}
	<-stopped
}
