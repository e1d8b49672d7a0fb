package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

// life is a daemon without an engine that runs in the test's own process.
type life struct {
	slog.Handler
	Config
	// at has functions that are called when the daemon logs a certain line, in the
	// logging goroutine, with the error of the line if there is one.
	at map[string]func(error)
}

// newLife makes an install whose next binary passes the check and then cannot be
// executed.
func newLife(t *testing.T) *life {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "abd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	next, supervisor := filepath.Join(home, "agboxd"), filepath.Join(filepath.Dir(self), "agbox-init")
	for path, text := range map[string]string{
		next:       "#!/bin/sh\nchmod -x \"$0\"; echo '{\"daemon\": \"agboxd\"}'\n",
		supervisor: "no program",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	old := startedFrom
	startedFrom = next
	t.Cleanup(func() { startedFrom = old; _ = os.Remove(supervisor) })
	l := &life{Handler: slog.DiscardHandler, at: make(map[string]func(error))}
	l.Config = Config{
		Paths:      paths.Install{Data: filepath.Join(home, "data"), Run: filepath.Join(home, "run")},
		EngineHost: "unix://" + filepath.Join(home, "no-engine"), Log: slog.New(l),
	}
	return l
}

func (l *life) Enabled(context.Context, slog.Level) bool { return true }

func (l *life) Handle(_ context.Context, r slog.Record) error {
	if call := l.at[r.Message]; call != nil {
		var failure error
		r.Attrs(func(a slog.Attr) bool {
			failure, _ = a.Value.Any().(error)
			return failure == nil
		})
		call(failure)
	}
	return nil
}

// raise sends a signal to the calling thread: it has arrived when raise returns.
func raise(t *testing.T, sig unix.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), sig); err != nil {
		t.Error(err)
	}
}

func TestAStopRightBeforeTheUpgradeEndsTheDaemon(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			l := newLife(t)
			l.at["agboxd is ready"] = func(error) { raise(t, unix.SIGHUP) }
			l.at["this agboxd has made room"] = func(error) { raise(t, sig) }
			l.at["the new agboxd could not be executed; this one goes on"] = func(error) { t.Error("the stop was lost") }
			if err := Run(t.Context(), l.Config); err != nil {
				t.Errorf("Run gives %v", err)
			}
			if _, err := os.Lstat(l.Paths.Socket()); !os.IsNotExist(err) {
				t.Errorf("the socket is still there (%v)", err)
			}
		})
	}
}

func TestAnUpgradeThatFailsLeavesTheSignalsCaught(t *testing.T) {
	l := newLife(t)
	starts := 0
	l.at["agboxd is ready"] = func(error) {
		if starts++; starts == 1 {
			raise(t, unix.SIGHUP)
		} else {
			raise(t, unix.SIGTERM)
		}
	}
	if err := Run(t.Context(), l.Config); err != nil || starts != 2 {
		t.Errorf("Run gives %v after %d starts, want 2", err, starts)
	}
}

func TestAStopDuringTheStartIsNoFailure(t *testing.T) {
	l := newLife(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.at["agboxd is ready"] = func(error) { t.Error("the start went on") }
	if err := Run(ctx, l.Config); err != nil {
		t.Errorf("Run gives %v", err)
	}
}

// stuck makes the first generation of a daemon hang in a step. It calls then right
// before.
func (l *life) stuck(t *testing.T, then func()) {
	old := leaveAfter
	leaveAfter = time.Millisecond
	release := make(chan struct{})
	t.Cleanup(func() { leaveAfter = old; close(release) })
	var once sync.Once
	l.at["the engine's event stream ended; it is opened again"] = func(error) {
		once.Do(func() { then(); <-release })
	}
}

func TestAStepThatNeverEndsDoesNotKeepTheDaemonFromStopping(t *testing.T) {
	l := newLife(t)
	l.stuck(t, func() { raise(t, unix.SIGTERM) })
	if err := Run(t.Context(), l.Config); err != nil {
		t.Errorf("Run gives %v", err)
	}
	next, err := takeClaim(t.Context(), l.Paths, l.Log)
	if err != nil {
		t.Fatalf("the next daemon: %v", err)
	}
	next.release()
}

// The kernel would wait for the step's thread before it executes the new program.
func TestWhereAStepNeverEndsTheDaemonDoesNotBecomeAnother(t *testing.T) {
	l := newLife(t)
	l.stuck(t, func() { raise(t, unix.SIGHUP) })
	var failures []error
	l.at["the new agboxd could not be executed; this one goes on"] = func(err error) { failures = append(failures, err) }
	starts := 0
	l.at["agboxd is ready"] = func(error) {
		switch starts++; starts {
		case 2: // the hanging step belongs to an earlier generation
			if err := os.Chmod(startedFrom, 0o755); err != nil {
				t.Error(err)
			}
			raise(t, unix.SIGHUP)
		case 3:
			raise(t, unix.SIGTERM)
		}
	}
	if err := Run(t.Context(), l.Config); err != nil {
		t.Errorf("Run gives %v", err)
	}
	if len(failures) != 2 || !errors.Is(failures[0], errLeft) || !errors.Is(failures[1], errLeft) {
		t.Errorf("the upgrades failed with %v, want both times that something was left behind", failures)
	}
}
