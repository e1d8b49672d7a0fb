package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a terminal with agbox on it. The test acts as its user.
type Terminal struct {
	t *testing.T
	// Cmd is the run of agbox.
	Cmd    *exec.Cmd
	master *os.File
	// line is agbox's end of the terminal. It stays open so that the test can examine it.
	line *os.File
	// Before is the state of the terminal when agbox started.
	Before unix.Termios
	// ended is closed when agbox has ended.
	ended chan struct{}
	kill  context.CancelFunc

	mu      sync.Mutex // guards the fields below
	shown   strings.Builder
	changed chan struct{}
	over    bool
	// answers has the answers to queries of programs, and queried up to where what was shown
	// was searched for them.
	answers map[string]string
	queried int
}

// OnTerminal runs agbox on a new terminal of 24 lines and 80 columns. It ends with the
// test at the latest.
func (in *Install) OnTerminal(t *testing.T, args ...string) *Terminal {
	t.Helper()
	return in.OnTerminalIn(t, "/", nil, args...)
}

// OnTerminalIn is OnTerminal in a folder, with more environment variables.
func (in *Install) OnTerminalIn(t *testing.T, dir string, env []string, args ...string) *Terminal {
	t.Helper()
	return in.OnTerminalOf(t, 24, dir, env, args...)
}

// OnTerminalOf is OnTerminalIn with another number of lines.
func (in *Install) OnTerminalOf(t *testing.T, lines uint16, dir string, env []string, args ...string) *Terminal {
	t.Helper()
	p := &Terminal{t: t, ended: make(chan struct{}), changed: make(chan struct{})}
	p.open()
	p.Resize(lines, 80)
	// As with Process, each wait is bounded and not the whole life.
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.kill = cancel
	p.Cmd = in.Command(ctx, "agbox", args...)
	p.Cmd.Dir, p.Cmd.Env = dir, slices.Concat(p.Cmd.Env, []string{"TERM=xterm", "USER=tester"}, env)
	p.Cmd.Stdin, p.Cmd.Stdout, p.Cmd.Stderr = p.line, p.line, p.line
	p.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.Cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(p.read)
	go func() { // waited for with ended
		defer close(p.ended)
		_ = p.Cmd.Wait()
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

func (p *Terminal) open() {
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
	p.Resize(24, 80)
	p.Before = p.State()
}

// State returns the settings of the terminal.
func (p *Terminal) State() unix.Termios {
	p.t.Helper()
	state, err := unix.IoctlGetTermios(int(p.line.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return *state
}

// Resize acts like a window that changes its size.
func (p *Terminal) Resize(rows, columns uint16) {
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

func (p *Terminal) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := p.master.Read(buf)
		p.take(buf[:n], false)
		if err == nil {
			_, err = p.master.WriteString(p.due())
		}
		if err != nil {
			return
		}
	}
}

// Answers has the terminal answer a query of a program each time it is shown, as "ESC [ 6 n"
// for the position of the cursor.
func (p *Terminal) Answers(query, answer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers == nil {
		p.answers = make(map[string]string)
	}
	p.answers[query] = answer
}

// due returns the answers to the queries that were shown since the last call.
func (p *Terminal) due() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	shown, all := p.shown.String(), ""
	for at := p.queried; at < len(shown); at++ {
		for query, answer := range p.answers {
			if strings.HasPrefix(shown[at:], query) {
				all += answer
				p.queried = at + len(query)
			}
		}
	}
	return all
}

func (p *Terminal) take(data []byte, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown.Write(data)
	p.over = over || strings.HasSuffix(p.shown.String(), endMark)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Screen returns everything that was shown so far.
func (p *Terminal) Screen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown.String()
}

// Hang calls fn once the terminal is full, and reads nothing until it returns.
func (p *Terminal) Hang(fn func()) {
	p.t.Helper()
	p.mu.Lock() // read blocks here
	defer p.mu.Unlock()
	Eventually(p.t, "the terminal is full", func() bool {
		room := []unix.PollFd{{Fd: int32(p.line.Fd()), Events: unix.POLLOUT}}
		n, err := unix.Poll(room, 0)
		return err == nil && n == 0
	})
	fn()
}

// Types presses keys.
func (p *Terminal) Types(keys string) {
	p.t.Helper()
	if _, err := p.master.WriteString(keys); err != nil {
		p.t.Fatal(err)
	}
}

// Await returns once the text was shown.
func (p *Terminal) Await(text string) {
	p.t.Helper()
	bound := time.NewTimer(Patience)
	defer bound.Stop()
	for {
		p.mu.Lock()
		shown, over, changed := p.shown.String(), p.over, p.changed
		p.mu.Unlock()
		if strings.Contains(shown, text) {
			return
		}
		if over {
			p.t.Fatalf("agbox %s ended without showing %q; the screen: %q", strings.Join(p.Cmd.Args[1:], " "), text, Clip(shown))
		}
		select {
		case <-changed:
		case <-bound.C:
			p.t.Fatalf("agbox %s did not show %q; the screen: %q", strings.Join(p.Cmd.Args[1:], " "), text, Clip(shown))
		}
	}
}

// awaitEnd returns once all output of agbox was read.
func (p *Terminal) awaitEnd() {
	bound := time.NewTimer(Patience)
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

// Wait returns the exit code and checks that the terminal was restored.
func (p *Terminal) Wait() int {
	p.t.Helper()
	p.awaitEnd()
	if after := p.State(); after != p.Before {
		p.t.Errorf("the terminal was left as %+v, it was %+v", after, p.Before)
	}
	if status, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
		p.t.Fatalf("agbox %s did not end; the screen: %q", strings.Join(p.Cmd.Args[1:], " "), Clip(p.Screen()))
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Says types a shell command that prints a word which the echo of the keys does not contain.
func (p *Terminal) Says(command, word string) {
	p.t.Helper()
	p.Types(command + "; echo " + word[:1] + "''" + word[1:] + "\n")
	p.Await(word)
}

// Ended is closed when agbox has ended.
func (p *Terminal) Ended() <-chan struct{} { return p.ended }

// Stopped returns once agbox is stopped by job control.
func (p *Terminal) Stopped() {
	Eventually(p.t, "agbox is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
		if errors.Is(err, os.ErrNotExist) {
			p.t.Fatal("agbox has ended")
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}
