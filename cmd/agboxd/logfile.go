package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxLogSize is the size at which the file is renamed, in bytes. A single record or a
	// panic may exceed it.
	maxLogSize = 10 << 20
	// keepLogs is how many old files are kept, as PATH.1, the newest, to PATH.3.
	keepLogs = 3
)

// logWriter writes to the standard error of this process. If that is a log file, it keeps the file
// within bounds: it renames the file when it is full, starts a new one, and keeps a few old ones.
//
// The process that starts this one opens the file, so that panics and errors before any
// logging end up in it too. Several processes may write to the same file. Its methods may be called from
// several goroutines.
type logWriter struct {
	path string
	out  *os.File
	// also are further descriptors that become the new file when out does.
	also []*os.File
	max  int64
	keep int

	// Held across I/O: a record must not end up in a file that another goroutine has just renamed.
	mu sync.Mutex
}

// stderrLog returns the writer for the standard error of this process. If that is the file
// at path, or one that was renamed from it, the file is kept within bounds from now on;
// otherwise, as under systemd or on a terminal, the writer only writes.
func stderrLog(path string) *logWriter {
	w := &logWriter{path: path, out: os.Stderr, also: []*os.File{os.Stdout}, max: maxLogSize, keep: keepLogs}
	w.begin()
	return w
}

// begin finds out whether out is the file, and makes room in it.
func (w *logWriter) begin() {
	here, err := w.out.Stat()
	if err != nil || !w.isOurs(here) {
		w.path = ""
		return
	}
	w.makeRoom(1)
}

func (w *logWriter) isOurs(here os.FileInfo) bool {
	for n := range w.keep + 1 {
		if there, err := os.Stat(w.name(n)); err == nil && os.SameFile(here, there) {
			return true
		}
	}
	return false
}

// name is the path of the nth old file; 0 is the current one.
func (w *logWriter) name(n int) string {
	if n == 0 {
		return w.path
	}
	return w.path + "." + strconv.Itoa(n)
}

// Write writes one record. It is not split between two files.
func (w *logWriter) Write(record []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.path != "" {
		w.makeRoom(len(record))
	}
	return w.out.Write(record)
}

// makeRoom sees to it that the next record, of n bytes, goes to the file at path and fits
// there. What fails is written to the log: it must not end the process.
func (w *logWriter) makeRoom(n int) {
	here, err := w.out.Stat()
	if err != nil {
		return
	}
	switch there, err := os.Stat(w.path); {
	case err != nil || !os.SameFile(here, there): // another process has renamed or removed it
		w.reopen(here)
	case here.Size() > 0 && here.Size()+int64(n) > w.max:
		w.rotate(here)
	}
}

// rotate renames the files and opens a new one. Only one process does so at a time.
func (w *logWriter) rotate(here os.FileInfo) {
	turn, err := os.OpenFile(w.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return // another process is at it; the next record finds the new file
	}
	defer turn.Close() // and with it the lock
	if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return
	}
	if there, err := os.Stat(w.path); err != nil || !os.SameFile(here, there) {
		return // another process was faster
	}
	for n := w.keep; n > 0; n-- {
		if err := os.Rename(w.name(n-1), w.name(n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			// Without an old file, but within its bounds.
			w.complain("was emptied, because it cannot be renamed", errors.Join(err, w.out.Truncate(0)))
			return
		}
	}
	w.reopen(here)
}

func (w *logWriter) complain(what string, err error) {
	fmt.Fprintf(w.out, "agboxd: the log file %s %s: %v\n", w.path, what, err)
}

// reopen makes the file at path the one that is written to, in place of old.
func (w *logWriter) reopen(old os.FileInfo) {
	file, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		w.complain("cannot be opened", err)
		return
	}
	defer file.Close() // its duplicates stay
	for _, f := range append([]*os.File{w.out}, w.also...) {
		if same, err := f.Stat(); err != nil || !os.SameFile(old, same) {
			continue
		}
		// Without flags: a program that this process becomes inherits its outputs.
		if err := unix.Dup3(int(file.Fd()), int(f.Fd()), 0); err != nil {
			w.complain("cannot take the place of the one before", err)
		}
	}
}

const (
	// burst is how many lines with the same message of the same sandbox are written
	// within one second.
	burst = 10
	// maxKeys bounds the remembered messages. Beyond it, the counts begin anew.
	maxKeys = 4096
	// suppressedKey is the key of the number of lines that were left out since the last
	// line with the same message of the same sandbox.
	suppressedKey = "suppressed"
	// sandboxKey is the key under which the daemon logs a sandbox.
	sandboxKey = "sandbox_id"
)

// repeatLimiter keeps the log from being flooded: what a sandbox does can make the daemon log
// the same line as often as the sandbox likes. It passes records on to another handler, at
// most burst of a kind in a second. The next record of that kind says how many were left
// out. The kind is the level, the message and the sandbox.
type repeatLimiter struct {
	slog.Handler
	*repeatState
}

type repeatState struct {
	mu    sync.Mutex // guards kinds
	kinds map[repeatKind]*repeatCount
}

type repeatKind struct {
	level            slog.Level
	message, sandbox string
}

type repeatCount struct {
	second time.Time
	lines  int
	// left is the number of lines left out since the last one written.
	left int
}

// limitRepeats returns a Handler for next.
func limitRepeats(next slog.Handler) repeatLimiter {
	return repeatLimiter{Handler: next, repeatState: &repeatState{kinds: make(map[repeatKind]*repeatCount)}}
}

// Handle implements slog.Handler.
func (h repeatLimiter) Handle(ctx context.Context, r slog.Record) error {
	k := repeatKind{level: r.Level, message: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == sandboxKey {
			k.sandbox = a.Value.String()
		}
		return true
	})
	left, write := h.take(k, r.Time)
	if !write {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int(suppressedKey, left))
	}
	return h.Handler.Handle(ctx, r)
}

// take counts one record. It returns whether to write it and how many were left out.
func (s *repeatState) take(k repeatKind, now time.Time) (left int, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[k]
	if c == nil {
		if len(s.kinds) >= maxKeys {
			clear(s.kinds)
		}
		c = new(repeatCount)
		s.kinds[k] = c
	}
	if second := now.Truncate(time.Second); !second.Equal(c.second) {
		c.second, c.lines = second, 0
	}
	if c.lines >= burst {
		c.left++
		return 0, false
	}
	c.lines++
	left, c.left = c.left, 0
	return left, true
}

// WithAttrs implements slog.Handler.
func (h repeatLimiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return repeatLimiter{Handler: h.Handler.WithAttrs(attrs), repeatState: h.repeatState}
}

// WithGroup implements slog.Handler.
func (h repeatLimiter) WithGroup(name string) slog.Handler {
	return repeatLimiter{Handler: h.Handler.WithGroup(name), repeatState: h.repeatState}
}
