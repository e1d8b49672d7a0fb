package e2e

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

	"github.com/agbox/agbox/e2e/internal/harness"
)

// pty is a terminal with agbox on it. The test acts as its user.
type pty struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	// line is agbox's end of the terminal. It stays open so that the test can examine it.
	line   *os.File
	before unix.Termios
	ended  chan struct{}
	kill   context.CancelFunc

	mu      sync.Mutex // guards the fields below
	shown   strings.Builder
	changed chan struct{}
	over    bool
}

// onTerminal runs agbox on a new terminal.
func (in *install) onTerminal(t *testing.T, args ...string) *pty {
	t.Helper()
	p := &pty{t: t, ended: make(chan struct{}), changed: make(chan struct{})}
	p.open()
	// As with harness.Process, each wait is bounded and not the whole life.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.kill = cancel
	p.cmd = in.Command(ctx, "agbox", args...)
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm", "USER=tester")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.line, p.line, p.line
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(p.read)
	go func() { // waited for with ended
		defer close(p.ended)
		_ = p.cmd.Wait()
		// Once this mark has been read, all output of agbox has been read.
		if _, err := p.line.WriteString(endMark); err != nil {
			p.take(nil, true)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
		_ = p.line.Close()
		_ = p.master.Close()
		reading.Wait()
	})
	return p
}

func (p *pty) open() {
	p.t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.master = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		p.t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		p.t.Fatal(err)
	}
	p.line, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.resize(24, 80)
	p.before = p.termios()
}

func (p *pty) termios() unix.Termios {
	p.t.Helper()
	state, err := unix.IoctlGetTermios(int(p.line.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *state
}

// resize acts like a window that changes its size.
func (p *pty) resize(rows, columns uint16) {
	p.t.Helper()
	conn, err := p.master.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	var failed error
	if err := conn.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}); err != nil || failed != nil {
		p.t.Fatal(err, failed)
	}
}

// endMark follows all output of agbox on the terminal.
const endMark = "<the end of agbox>"

func (p *pty) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.master.Read(buf)
		p.take(buf[:n], false)
		if err != nil {
			return
		}
	}
}

func (p *pty) take(data []byte, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown.Write(data)
	p.over = over || strings.HasSuffix(p.shown.String(), endMark)
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *pty) screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown.String()
}

// hang calls fn once the terminal is full, and reads nothing until it returns.
func (p *pty) hang(fn func()) {
	p.t.Helper()
	p.mu.Lock() // read blocks here
	defer p.mu.Unlock()
	harness.Eventually(p.t, "the terminal is full", func() bool {
		room := []unix.PollFd{{Fd: int32(p.line.Fd()), Events: unix.POLLOUT}}
		n, err := unix.Poll(room, 0)
		return err == nil && n == 0
	})
	fn()
}

// types presses keys.
func (p *pty) types(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// await returns once the text was shown.
func (p *pty) await(text string) {
	p.t.Helper()
	bound := time.NewTimer(harness.Patience)
	defer bound.Stop()
	for {
		p.mu.Lock()
		shown, over, changed := p.shown.String(), p.over, p.changed
		p.mu.Unlock()
		if strings.Contains(shown, text) {
			return
		}
		if over {
			p.t.Fatalf("agbox %s ended without showing %q; the screen: %q", strings.Join(p.cmd.Args[1:], " "), text, harness.Clip(shown))
		}
		select {
		case <-changed:
		case <-bound.C:
			p.t.Fatalf("agbox %s did not show %q; the screen: %q", strings.Join(p.cmd.Args[1:], " "), text, harness.Clip(shown))
		}
	}
}

// awaitEnd returns once all output of agbox was read.
func (p *pty) awaitEnd() {
	bound := time.NewTimer(harness.Patience)
	defer bound.Stop()
	select {
	case <-p.ended:
	case <-bound.C:
		p.kill()
		<-p.ended
	}
	for {
		p.mu.Lock()
		over, changed := p.over, p.changed
		p.mu.Unlock()
		if over {
			return
		}
		<-changed
	}
}

// wait returns the exit code and checks that the terminal was restored.
func (p *pty) wait() int {
	p.t.Helper()
	p.awaitEnd()
	if after := p.termios(); after != p.before {
		p.t.Errorf("the terminal was left as %+v, it was %+v", after, p.before)
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
		p.t.Fatalf("agbox %s did not end; the screen: %q", strings.Join(p.cmd.Args[1:], " "), harness.Clip(p.screen()))
	}
	return p.cmd.ProcessState.ExitCode()
}

// stopped returns once agbox is stopped by job control.
func (p *pty) stopped() {
	harness.Eventually(p.t, "agbox is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if errors.Is(err, os.ErrNotExist) {
			p.t.Fatal("agbox has ended")
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}
