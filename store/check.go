package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/containerd/errdefs"
)

// Exit codes of CheckMain, after sysexits.h. None is a code that a shell, a
// flag parser or a Go crash (2) gives.
const (
	exitSound   = 0
	exitDamaged = 65
	exitUnknown = 75
)

// checkBanner is the first line of a check: a process that ends without it has
// not been one, and its end says nothing of the database.
const checkBanner = "agbox database check"

// maxProblems bounds what a check reports: after a few the verdict stands.
const maxProblems = 20

// maxCheckStack ends an endless descent through pages that point in a circle.
const maxCheckStack = 64 << 20

// CheckMain checks the database at path, reports on stdout and returns the exit
// code of the process: 0 for sound. It belongs in a process of its own,
// because a file that is bad enough ends the process that maps it.
func CheckMain(path string) int {
	debug.SetMaxStack(maxCheckStack)
	fmt.Println(checkBanner)
	problems, err := checkFile(path)
	switch {
	case err == nil:
		for _, p := range problems {
			fmt.Println(p)
		}
		return exitSound
	case errors.Is(err, ErrDamaged):
		fmt.Println(err)
		return exitDamaged
	}
	fmt.Println(err)
	return exitUnknown
}

// checkFile returns ErrDamaged if the file as a whole cannot be trusted, and
// the records that cannot be read, which is no reason to refuse the others.
func checkFile(path string) (problems []error, err error) {
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: 2 * time.Second})
	if err != nil {
		if errors.Is(err, berrors.ErrInvalid) || errors.Is(err, berrors.ErrChecksum) || errors.Is(err, berrors.ErrVersionMismatch) {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = guardBolt(func() error {
		return db.View(func(b *bolt.Tx) error {
			// First, because it says what is wrong, where bbolt's check, in a goroutine
			// of its own, ends the process.
			problems = walk(b)
			return structure(b)
		})
	})
	return problems, err
}

// structure is bbolt's own check: every page in use once, keys in order.
func structure(b *bolt.Tx) error {
	var bad []error
	for e := range b.Check() { // to the end: its goroutine waits for a reader
		if len(bad) < maxProblems {
			bad = append(bad, e)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, errors.Join(bad...))
	}
	return nil
}

// check runs the check in a child process, or here if there is no command for
// one.
func check(ctx context.Context, o Options, f *os.File) error {
	start := time.Now()
	if err := rereadFromDisk(f); err != nil {
		return err
	}
	problems, err := runCheck(ctx, o)
	if err != nil {
		return err
	}
	for _, p := range problems {
		o.Logger.Warn("a record of the database cannot be read", "path", o.Path, "problem", p)
	}
	o.Logger.Info("database checked after an unclean stop", "path", o.Path,
		slog.Duration("took", time.Since(start)))
	return nil
}

func runCheck(ctx context.Context, o Options) ([]string, error) {
	if o.CheckCommand == nil {
		var problems []error
		err := guard(func() (err error) {
			problems, err = checkFile(o.Path)
			return err
		})
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = p.Error()
		}
		if errors.Is(err, ErrDamaged) {
			return nil, damaged(o.Path, err)
		}
		return texts, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.CheckTimeout)
	defer cancel()
	report, err := runChild(ctx, o.CheckCommand(o.Path))
	text, started := strings.CutPrefix(report, checkBanner+"\n")
	switch verdict := exitOf(err); {
	case ctx.Err() != nil:
		return nil, unfinished(o, context.Cause(ctx))
	case started && err == nil:
		return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), nil
	case started && (verdict == exitDamaged || verdict == exitCrashed):
		return nil, damaged(o.Path, errors.New(text))
	}
	if err == nil {
		err = errors.New("something else ran in its place")
	}
	if text = strings.TrimSpace(text); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return nil, unfinished(o, err)
}

func unfinished(o Options, cause error) error {
	return storeFault(errdefs.ErrUnavailable, ErrCheckUnfinished, cause,
		"The check of the database %s after an unclean stop did not end (%v). Start again; it has %v.",
		o.Path, cause, o.CheckTimeout).With("path", o.Path)
}

// exitCrashed is exitOf's word for a Go crash: exit code 2, or a signal that
// means one.
const exitCrashed = 2

// exitOf returns -1 for an end that says nothing, such as SIGKILL.
func exitOf(err error) int {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return -1
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		switch status.Signal() {
		case syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGABRT, syscall.SIGILL, syscall.SIGTRAP:
			return exitCrashed
		}
	}
	return exit.ExitCode()
}

// rereadFromDisk makes the check see what a reboot would see: a page whose
// write failed can stand in the page cache as if it were on the disk. The whole
// file is read at once, because the faults of a mapping would fetch it page by page.
func rereadFromDisk(f *os.File) error {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // fails on no regular file
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
}

// runChild returns what the child wrote to both outputs, cut to a bound.
func runChild(ctx context.Context, cmd *exec.Cmd) (string, error) {
	out := &headBuffer{limit: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return out.String(), err
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return "", <-ended
	}
}

// headBuffer keeps the first bytes and takes the rest without keeping it. Both
// outputs of a command share one copying goroutine, so it needs no lock.
type headBuffer struct {
	bytes.Buffer
	limit int
}

func (b *headBuffer) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); room > 0 {
		_, _ = b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// ReadFrom hides the one of bytes.Buffer, which knows no limit.
func (b *headBuffer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}
