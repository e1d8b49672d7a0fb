package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Result is how a process ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	// Code is the exit code, or -1 if a signal ended the process.
	Code   int
	Signal syscall.Signal
}

// Want fails the test unless the exit code is the given one.
func (r Result) Want(t *testing.T, code int) Result {
	t.Helper()
	if r.Code != code {
		t.Fatalf("%s: exit code %d (signal %d), want %d\nstdout: %s\nstderr: %s",
			strings.Join(r.Args, " "), r.Code, r.Signal, code, Clip(r.Stdout), Clip(r.Stderr))
	}
	return r
}

// WantOutput fails the test unless both outputs are the given ones.
func (r Result) WantOutput(t *testing.T, stdout, stderr string) Result {
	t.Helper()
	WantSame(t, strings.Join(r.Args, " ")+": stdout", r.Stdout, stdout)
	WantSame(t, strings.Join(r.Args, " ")+": stderr", r.Stderr, stderr)
	return r
}

// WantSame compares texts of any length and shows where they differ.
func WantSame(t *testing.T, what, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	from := max(0, at-40)
	t.Errorf("%s has %d bytes, want %d; they part at byte %d:\n got ...%q\nwant ...%q", what, len(got), len(want), at,
		Clip(got[from:]), Clip(want[from:]))
}

// Clip shortens a long text.
func Clip(text string) string {
	const most = 2000
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:most], len(text))
}

// Process is a run of one of the binaries.
type Process struct {
	Cmd            *exec.Cmd
	Stdout, Stderr *Output
	// ended is closed when the process has ended and err is set.
	ended chan struct{}
	err   error
	// kill ends the process.
	kill context.CancelFunc
}

// Start runs agbox in the background. It ends with the test at the latest.
func (in *Install) Start(t *testing.T, args ...string) *Process {
	t.Helper()
	return in.StartBinary(t, "agbox", args...)
}

// StartWith is Start with a stdin.
func (in *Install) StartWith(t *testing.T, stdin *os.File, args ...string) *Process {
	t.Helper()
	return in.start(t, stdin, "agbox", args...)
}

// StartBinary runs one of the binaries in the background.
func (in *Install) StartBinary(t *testing.T, name string, args ...string) *Process {
	t.Helper()
	return in.start(t, nil, name, args...)
}

func (in *Install) start(t *testing.T, stdin *os.File, name string, args ...string) *Process {
	t.Helper()
	// Each wait is bounded, not the process's life: a test may take long on a busy
	// machine. It also runs in clean-ups, when the test's own context has ended.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &Process{Cmd: in.Command(ctx, name, args...), Stdout: NewOutput(), Stderr: NewOutput(), ended: make(chan struct{}), kill: cancel}
	p.Cmd.Stdout, p.Cmd.Stderr = p.Stdout, p.Stderr
	if stdin != nil {
		p.Cmd.Stdin = stdin
	}
	if err := p.Cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() { // waited for with ended
		defer close(p.ended)
		p.err = p.Cmd.Wait()
		p.Stdout.end()
		p.Stderr.end()
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	return p
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait returns how the process ended.
func (p *Process) Wait(t *testing.T) Result {
	t.Helper()
	bound := time.NewTimer(Patience)
	defer bound.Stop()
	select {
	case <-p.ended:
	case <-bound.C:
		p.kill()
		<-p.ended
	}
	status := p.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	r := Result{Args: p.args(), Stdout: p.Stdout.String(), Stderr: p.Stderr.String(), Code: p.Cmd.ProcessState.ExitCode()}
	if status.Signaled() {
		r.Signal = status.Signal()
	}
	if errors.Is(p.err, exec.ErrWaitDelay) {
		t.Errorf("%s has ended, but something it started keeps its outputs open", strings.Join(r.Args, " "))
	}
	if r.Signal == syscall.SIGKILL {
		t.Fatalf("%s did not end within %v\nstdout: %s\nstderr: %s", strings.Join(r.Args, " "), Patience, Clip(r.Stdout), Clip(r.Stderr))
	}
	return r
}

func (p *Process) args() []string {
	return append([]string{"agbox"}, p.Cmd.Args[1:]...)
}

// Signal sends a signal to the process.
func (p *Process) Signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	// If it has ended already, Wait reports that.
	if err := p.Cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// AwaitOutput returns once the process has written text to stdout.
func (p *Process) AwaitOutput(t *testing.T, text string) {
	t.Helper()
	if !p.Stdout.await(func(got string) bool { return strings.Contains(got, text) }) {
		t.Fatalf("%s has ended without writing %q, or took too long to write it\nstdout: %s\nstderr: %s",
			strings.Join(p.args(), " "), text, Clip(p.Stdout.String()), Clip(p.Stderr.String()))
	}
}

// Output stores what a process writes and wakes those who wait for it.
type Output struct {
	// mu guards the fields below.
	mu      sync.Mutex
	text    strings.Builder
	over    bool
	changed chan struct{}
}

// NewOutput returns an empty Output.
func NewOutput() *Output { return &Output{changed: make(chan struct{})} }

// Write appends what the process wrote.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(p)
}

func (o *Output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	close(o.changed)
	o.changed = make(chan struct{})
}

// String returns what was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await returns true once the condition is true, and false if the process ends first. Its
// time is bounded.
func (o *Output) await(cond func(string) bool) bool {
	bound := time.NewTimer(Patience)
	defer bound.Stop()
	for {
		o.mu.Lock()
		text, over, changed := o.text.String(), o.over, o.changed
		o.mu.Unlock()
		switch {
		case cond(text):
			return true
		case over:
			return false
		}
		select {
		case <-changed:
		case <-bound.C:
			return false
		}
	}
}

// Bounded returns the context for calls of the client package.
func Bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Eventually returns once the condition is true. Use it for conditions without a
// notification.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	EventuallyOr(t, cond, func() { t.Fatalf("it did not come about within %v that %s", Patience, what) })
}

// EventuallyOr is Eventually that calls otherwise if the condition does not become true. It
// rests as long as a look took: a condition that runs commands leaves the machine to what it
// waits for.
func EventuallyOr(t *testing.T, cond func() bool, otherwise func()) {
	t.Helper()
	ctx := Bounded(t)
	for {
		began := time.Now()
		if cond() {
			return
		}
		select {
		case <-time.After(max(20*time.Millisecond, time.Since(began))):
		case <-ctx.Done():
			otherwise()
			return
		}
	}
}

// UntilSignal returns a shell script that runs first, then waits for a signal, and then
// does what the trap says. Its stderr is descriptor 3: on 2 the shell itself would report
// the sleep that the same signal has ended.
func UntilSignal(signal, trap, first string) string {
	return fmt.Sprintf("exec 3>&2 2>/dev/null; trap '%s' %s; %s; while :; do sleep 0.05; done", trap, signal, first)
}

// KillDaemon ends the daemon with SIGKILL and waits for its end.
func (in *Install) KillDaemon(t *testing.T) {
	t.Helper()
	in.AimAtDaemon(t)()
}

// AimAtDaemon finds the running daemon. The function that it returns is KillDaemon
// without the search. It must be called once.
func (in *Install) AimAtDaemon(t *testing.T) (kill func()) {
	t.Helper()
	return Aim(t, in.Status(t).PID)
}

// Aim finds a daemon by its pid. The function that it returns ends that daemon with
// SIGKILL and waits for its end. It must be called once.
func Aim(t *testing.T, pid int) (kill func()) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		defer unix.Close(fd)
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(Patience.Milliseconds()))
			switch {
			case errors.Is(err, syscall.EINTR):
			case n == 1:
				return
			default:
				t.Fatalf("the daemon (pid %d) outlives SIGKILL: %v", pid, err)
			}
		}
	}
}
