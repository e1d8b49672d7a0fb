package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// result is how a process ended.
type result struct {
	args           []string
	stdout, stderr string
	// code is the exit code; -1 when a signal ended the process.
	code   int
	signal syscall.Signal
}

// want fails the test unless the exit code is the given one.
func (r result) want(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("%s: exit code %d (signal %d), want %d\nstdout: %s\nstderr: %s",
			strings.Join(r.args, " "), r.code, r.signal, code, clip(r.stdout), clip(r.stderr))
	}
	return r
}

// wantOutput fails the test unless both outputs are the given ones.
func (r result) wantOutput(t *testing.T, stdout, stderr string) result {
	t.Helper()
	wantSame(t, strings.Join(r.args, " ")+": stdout", r.stdout, stdout)
	wantSame(t, strings.Join(r.args, " ")+": stderr", r.stderr, stderr)
	return r
}

// wantSame compares texts of any length and shows where they part.
func wantSame(t *testing.T, what, got, want string) {
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
		clip(got[from:]), clip(want[from:]))
}

// clip shortens what is too long to read.
func clip(text string) string {
	const most = 2000
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:most], len(text))
}

// process is a run of one of the binaries.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr *output
	// ended is closed when the process has ended and err is set.
	ended chan struct{}
	err   error
}

// start runs agbox beside the test. The test's end is its end too.
func (in *install) start(t *testing.T, args ...string) *process {
	t.Helper()
	return in.startBinary(t, "agbox", args...)
}

func (in *install) startBinary(t *testing.T, name string, args ...string) *process {
	t.Helper()
	// The bound holds in clean-ups too, when the test's own context has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	p := &process{cmd: in.command(ctx, name, args...), stdout: newOutput(), stderr: newOutput(), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() { // waited for with ended
		defer close(p.ended)
		p.err = p.cmd.Wait()
		p.stdout.end()
		p.stderr.end()
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	return p
}

// wait returns how the process ended.
func (p *process) wait(t *testing.T) result {
	t.Helper()
	<-p.ended
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	r := result{args: p.args(), stdout: p.stdout.String(), stderr: p.stderr.String(), code: p.cmd.ProcessState.ExitCode()}
	if status.Signaled() {
		r.signal = status.Signal()
	}
	if errors.Is(p.err, exec.ErrWaitDelay) {
		t.Errorf("%s has ended, but something it started keeps its outputs open", strings.Join(r.args, " "))
	}
	if r.signal == syscall.SIGKILL {
		t.Fatalf("%s did not end within %v\nstdout: %s\nstderr: %s", strings.Join(r.args, " "), patience, clip(r.stdout), clip(r.stderr))
	}
	return r
}

func (p *process) args() []string {
	return append([]string{"agbox"}, p.cmd.Args[1:]...)
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// awaitOutput returns once the process has written text to stdout.
func (p *process) awaitOutput(t *testing.T, text string) {
	t.Helper()
	if !p.stdout.await(func(got string) bool { return strings.Contains(got, text) }) {
		t.Fatalf("%s ended without writing %q\nstdout: %s\nstderr: %s",
			strings.Join(p.args(), " "), text, clip(p.stdout.String()), clip(p.stderr.String()))
	}
}

// output keeps what a process writes and wakes who waits for it.
type output struct {
	// mu guards what follows.
	mu      sync.Mutex
	text    strings.Builder
	over    bool
	changed chan struct{}
}

func newOutput() *output { return &output{changed: make(chan struct{})} }

// Write takes what the process wrote.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await returns true once the condition holds, and false if the process ends
// before; its time is bounded.
func (o *output) await(cond func(string) bool) bool {
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
		<-changed
	}
}

// bounded is the context for calls of the client package.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually returns once the condition holds. It is for what cannot be
// subscribed to.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx := bounded(t)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !cond() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("it did not come about within %v that %s", patience, what)
		}
	}
}

// untilSignal is a shell script that runs first and then waits for a signal, on
// which it does what the trap says. Its stderr is descriptor 3: on 2 the shell
// itself would tell of the sleep that the same signal has ended.
func untilSignal(signal, trap, first string) string {
	return fmt.Sprintf("exec 3>&2 2>/dev/null; trap '%s' %s; %s; while :; do sleep 0.05; done", trap, signal, first)
}

// killDaemon ends the daemon with SIGKILL and returns when it is gone.
func (in *install) killDaemon(t *testing.T) {
	t.Helper()
	pid := in.status(t).PID
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		switch {
		case errors.Is(err, syscall.EINTR):
		case n == 1:
			return
		default:
			t.Fatalf("the daemon (pid %d) outlives SIGKILL: %v", pid, err)
		}
	}
}
