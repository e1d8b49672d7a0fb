package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// terminal is the terminal on standard input.
type terminal struct {
	fd int

	// mu guards saved.
	// Held across I/O: saved must be the state that the terminal was changed from.
	mu sync.Mutex
	// saved is the state before raw; nil if the terminal is not raw.
	saved *term.State
}

// terminal returns the terminal on stdin; nil if stdin is not a terminal.
func (a *app) terminal() *terminal {
	if a.stdin == nil || !term.IsTerminal(int(a.stdin.Fd())) {
		return nil
	}
	return &terminal{fd: int(a.stdin.Fd())}
}

// raw switches the terminal to raw mode. It does nothing in the background: SIGCONT
// calls it again once agbox is in the foreground.
func (t *terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !foreground(t.fd) {
		return nil
	}
	saved, err := term.MakeRaw(t.fd)
	if err == nil && t.saved == nil {
		t.saved = saved
	}
	return err
}

// restore undoes raw.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		_ = term.Restore(t.fd, t.saved)
		t.saved = nil
	}
}

// restoreOnPanic restores the terminal before a panic ends the process: in raw mode
// the panic's message would be hard to read. Each goroutine of a session defers it.
func (t *terminal) restoreOnPanic() {
	if p := recover(); p != nil {
		t.restore()
		panic(p)
	}
}

// forget drops what was typed and not read yet. In the background it does nothing: the
// kernel would stop agbox.
func (t *terminal) forget() {
	if foreground(t.fd) {
		_ = unix.IoctlSetInt(t.fd, unix.TCFLSH, unix.TCIFLUSH) // without it, they are read
	}
}

// size is the size of the terminal; nil if it is unknown.
func (t *terminal) size() *agboxv1.TerminalSize {
	columns, rows, err := term.GetSize(t.fd)
	return terminalSize(rows, columns, err)
}

const largestTerminal = 4096

func terminalSize(rows, columns int, err error) *agboxv1.TerminalSize {
	if err != nil || rows <= 0 || columns <= 0 {
		return nil
	}
	return &agboxv1.TerminalSize{Rows: uint32(min(rows, largestTerminal)), Columns: uint32(min(columns, largestTerminal))}
}

// outputSize is the size of the terminal on stdout; nil if there is none.
func (a *app) outputSize() *agboxv1.TerminalSize {
	f, ok := a.stdout.(*os.File)
	if !ok {
		return nil
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	return terminalSize(rows, columns, err)
}

// knownTerminals are TERM values that nearly every image has a description of.
var knownTerminals = []string{"xterm", "xterm-256color", "screen", "screen-256color", "tmux", "tmux-256color", "linux", "vt100", "vt220"}

// terminalName is the TERM for a command on our terminal.
func (a *app) terminalName() string {
	name, _ := a.lookupEnv("TERM")
	switch {
	case slices.Contains(knownTerminals, name):
		return name
	case strings.Contains(name, "256color"):
		return "xterm-256color"
	}
	return "xterm"
}

// writerName names us to the clients that watch: user and terminal.
func (a *app) writerName() string {
	user, _ := a.lookupEnv("USER")
	where, _ := os.Readlink("/proc/self/fd/0")
	if rest, ok := strings.CutPrefix(where, "/dev/"); ok && a.terminal() != nil {
		where = strings.ReplaceAll(rest, "/", "")
	} else {
		where = filepath.Base(os.Args[0])
	}
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, firstOf(user, "somebody")+" "+where)
	return name[:min(len(name), 48)]
}

// typistName is a writer's name without its random suffix.
func typistName(writer string) string {
	if i := strings.LastIndexByte(writer, '-'); i > 0 {
		return strings.Replace(writer[:i], "_", " on ", 1)
	}
	return "another program"
}
