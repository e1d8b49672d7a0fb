package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/term"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// terminal is the terminal on our standard input.
type terminal struct {
	fd int

	// mu guards saved.
	// Held across I/O: saved must be the state that the terminal was changed from.
	mu sync.Mutex
	// saved is how the terminal was; nil while it is like that.
	saved *term.State
}

// terminal returns the terminal on our stdin; nil if it is none.
func (a *app) terminal() *terminal {
	if a.stdin == nil || !term.IsTerminal(int(a.stdin.Fd())) {
		return nil
	}
	return &terminal{fd: int(a.stdin.Fd())}
}

// raw has every key come to us as it is. In the background that is left for when
// we get the terminal.
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

// restore makes the terminal what it was before raw.
func (t *terminal) restore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved != nil {
		_ = term.Restore(t.fd, t.saved)
		t.saved = nil
	}
}

// restoreOnPanic is for the goroutines of a session: a terminal that echoes
// nothing would hide why we died.
func (t *terminal) restoreOnPanic() {
	if p := recover(); p != nil {
		t.restore()
		panic(p)
	}
}

// size is the size of the terminal; nil if it does not know it.
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

// outputSize is the size of the terminal on our stdout; nil if there is none.
func (a *app) outputSize() *agboxv1.TerminalSize {
	f, ok := a.stdout.(*os.File)
	if !ok {
		return nil
	}
	columns, rows, err := term.GetSize(int(f.Fd()))
	return terminalSize(rows, columns, err)
}

// knownTerminals are those that nearly every image knows.
var knownTerminals = []string{"xterm", "xterm-256color", "screen", "screen-256color", "tmux", "tmux-256color", "linux", "vt100", "vt220"}

// terminalName is the TERM of a command that runs on our terminal.
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

// writerName is what others see of us who look on: user and terminal.
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

// typistName is a writer without the part that was made at random.
func typistName(writer string) string {
	if i := strings.LastIndexByte(writer, '-'); i > 0 {
		return strings.Replace(writer[:i], "_", " on ", 1)
	}
	return "another program"
}
