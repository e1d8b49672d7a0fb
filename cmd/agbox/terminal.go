package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
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

// errNoTerminal refuses -it.
var errNoTerminal = usagef("-it needs a terminal, but standard input is not one. Omit -t to pass a file or a pipe, or omit -i to only watch.")

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
	}, cmp.Or(user, "somebody")+" "+where)
	return name[:min(len(name), 48)]
}

// typistName is a writer's name without its random suffix.
func typistName(writer string) string {
	if i := strings.LastIndexByte(writer, '-'); i > 0 {
		return strings.Replace(writer[:i], "_", " on ", 1)
	}
	return "another program"
}

// input reads standard input and can be stopped while it waits.
type input struct {
	fd int
	// tty means that the input is a terminal.
	tty bool
	// stop closes stopWrite, which wakes the poll on stopRead.
	stopRead, stopWrite *os.File
	state               atomic.Int32
	done                chan struct{}
}

// The states of an input.
const (
	stoppable int32 = iota
	// direct: in a read that cannot be stopped. In the background, the kernel
	// answers a read of the terminal with SIGTTIN.
	direct
	stopped
)

// readInput calls take with each piece of input until take returns false. The last call
// has an error: io.EOF at the end of the input, else the read error. stop stops reading
// and waits for the reader.
func readInput(f *os.File, take func([]byte, error) bool) (stop func(), err error) {
	if f == nil {
		take(nil, io.EOF)
		return func() {}, nil
	}
	in := &input{fd: int(f.Fd()), done: make(chan struct{})}
	in.tty = term.IsTerminal(in.fd)
	if in.stopRead, in.stopWrite, err = os.Pipe(); err != nil {
		return nil, err
	}
	go func() { // stop waits for it
		defer close(in.done)
		in.run(take)
	}()
	return in.stop, nil
}

func (in *input) stop() {
	_ = in.stopWrite.Close()
	if in.state.Swap(stopped) == direct {
		return // the read cannot be interrupted; it ends with the process
	}
	<-in.done
	_ = in.stopRead.Close()
}

// pieceSize is the largest read, in bytes.
const pieceSize = 256 << 10

func (in *input) run(take func([]byte, error) bool) {
	buf := make([]byte, pieceSize)
	for {
		n, err := in.read(buf)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil || n <= 0 {
			if err == nil {
				err = io.EOF
			}
			take(nil, err)
			return
		}
		if !take(buf[:n], nil) {
			return
		}
	}
}

var errStopped = errors.New("stopped")

func (in *input) read(buf []byte) (int, error) {
	for {
		if in.tty && !foreground(in.fd) {
			if !in.state.CompareAndSwap(stoppable, direct) {
				return 0, errStopped
			}
			n, err := unix.Read(in.fd, buf)
			if !in.state.CompareAndSwap(direct, stoppable) {
				return 0, errStopped
			}
			if !errors.Is(err, unix.EINTR) {
				return n, err
			}
			continue
		}
		fds := []unix.PollFd{{Fd: int32(in.fd), Events: unix.POLLIN}, {Fd: int32(in.stopRead.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		switch {
		case fds[1].Revents != 0:
			return 0, errStopped
		case fds[0].Revents == 0:
			continue
		}
		n, err := unix.Read(in.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err == nil && n == 0:
			return 0, io.EOF
		default:
			return n, err
		}
	}
}

// foreground reports whether our process group is the terminal's foreground group.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// defaultDetachKeys are docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys such as ctrl-p,ctrl-q or ctrl-],d; empty means none.
func parseDetachKeys(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(text, ",") {
		key, ok := parseKey(word)
		if !ok {
			return nil, usagef("%q is not a key. Separate keys with commas, as in %s; a key is one character, or ctrl- and a letter or one of @ [ \\ ] ^ _.", word, defaultDetachKeys)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func parseKey(word string) (byte, bool) {
	if len(word) == 1 {
		return word[0], word[0] < 0x80
	}
	rest, ok := strings.CutPrefix(strings.ToLower(word), "ctrl-")
	switch {
	case !ok || len(rest) != 1:
		return 0, false
	case rest[0] >= 'a' && rest[0] <= 'z', strings.ContainsAny(rest, `@[\]^_`):
		return rest[0] & 0x1f, true
	}
	return 0, false
}

// detachFilter finds the detach keys in typed input. It holds back the first keys of the
// sequence until the next key shows whether the sequence continues.
//
// The proxy of github.com/moby/term is not used: it misses the keys if the first is
// typed twice (ctrl-p ctrl-p ctrl-q), and it is a reader that must own the terminal.
type detachFilter struct {
	keys []byte
	held []byte
}

// take returns the bytes that go to the command, and whether the detach keys followed.
func (f *detachFilter) take(typed []byte) (out []byte, detach bool) {
	if len(f.keys) == 0 {
		return typed, false
	}
	for _, b := range typed {
		f.held = append(f.held, b)
		for !bytes.HasPrefix(f.keys, f.held) {
			out = append(out, f.held[0])
			f.held = f.held[1:]
		}
		if len(f.held) == len(f.keys) {
			f.held = nil
			return out, true
		}
	}
	return out, false
}

// lookingOn says who types, and how to type instead.
func lookingOn(typist, id string) string {
	if typist == "" {
		return "You are watching; nobody types. Ctrl-C disconnects."
	}
	return fmt.Sprintf("You are watching; %s types. Ctrl-C disconnects; `agbox attach --take-over %s` lets you type instead.", typistName(typist), id)
}

func addDetachKeys(cmd *cobra.Command, keys *string) {
	cmd.Flags().StringVar(keys, "detach-keys", defaultDetachKeys, "`KEYS` that detach from a command on a terminal; empty disables them")
}
