package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Exit codes of CheckMain, taken from sysexits.h. They differ from the codes
// that a shell, a flag parser or a Go crash (2) returns.
const (
	exitSound   = 0
	exitDamaged = 65
	exitUnknown = 75
)

// checkBanner is the first line that a check prints. A process that did not
// print it was not a check, so its exit says nothing about the database.
const checkBanner = "agbox database check"

// maxProblems bounds what a check reports. More would not change the verdict.
const maxProblems = 20

// maxCheckStack bounds the recursion through pages that form a cycle.
const maxCheckStack = 64 << 20

// CheckMain checks the database at path, reports on stdout and returns the exit
// code for the process: 0 means sound. Run it in a separate process: mapping a
// badly damaged file can crash the process.
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

// checkFile returns ErrDamaged if the file as a whole cannot be trusted.
// problems lists the single records that cannot be read; they do not make the
// rest of the file unusable.
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
			// walk goes first because it reports what is wrong. bbolt's own check runs in
			// a separate goroutine, so a panic in it ends the process.
			problems = walk(b)
			return structure(b)
		})
	})
	return problems, err
}

// structure runs bbolt's own check: each page is used once, and keys are in order.
func structure(b *bolt.Tx) error {
	var bad []error
	for e := range b.Check() { // drain the channel, or bbolt's goroutine leaks
		if len(bad) < maxProblems {
			bad = append(bad, e)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", ErrDamaged, errors.Join(bad...))
	}
	return nil
}

// check runs the check in a child process, or in this process if Options has
// no CheckCommand.
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
		err = errors.New("the command that ran was not the check")
	}
	if text = strings.TrimSpace(text); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return nil, unfinished(o, err)
}

func unfinished(o Options, cause error) error {
	return storeFault(errdefs.ErrUnavailable, ErrCheckUnfinished, cause,
		"The check of the database %s after an unclean stop did not finish (%v). Start the daemon again; a check may take up to %v.",
		o.Path, cause, o.CheckTimeout).With("path", o.Path)
}

// exitCrashed is what exitOf returns for a Go crash: exit code 2, or a signal
// that a crash raises.
const exitCrashed = 2

// exitOf returns the child's exit code. It returns -1 if the child ended in a
// way that gives no verdict, such as SIGKILL.
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

// rereadFromDisk makes the check see what a reboot would see. A page whose write
// failed can stay in the page cache although it is not on the disk, so the cache
// is dropped first. Reading the whole file in large blocks is then faster than
// the page faults of a mapping, which would fetch it page by page.
func rereadFromDisk(f *os.File) error {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // never fails on a regular file
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
}

// runChild runs cmd and returns the first 64 KiB of its stdout and stderr together.
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

// headBuffer keeps the first limit bytes and discards the rest. It needs no
// lock: stdout and stderr of a command share one copying goroutine.
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

// ReadFrom replaces bytes.Buffer.ReadFrom, which ignores the limit.
func (b *headBuffer) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{b}, r)
}

// walk reads every record and returns an error for each that does not decode, up
// to maxProblems. It reads the values in unknown buckets without decoding them.
func walk(b *bolt.Tx) []error {
	var problems []error
	_ = b.ForEach(func(name []byte, bucket *bolt.Bucket) error { // the function returns no error
		verify := verifierOf(string(name))
		return bucket.ForEach(func(k, v []byte) error {
			if v == nil || len(problems) >= maxProblems {
				return nil
			}
			if err := verify(v); err != nil {
				problems = append(problems, &RecordError{Bucket: string(name), Key: keyText(k), Err: err})
			}
			return nil
		})
	})
	return problems
}

// verifierOf returns the check for values of the bucket.
func verifierOf(bucket string) func(value []byte) error {
	kind, _, many := strings.Cut(bucket, ":")
	if many {
		kind += ":"
	}
	message, known := valuesOf[kind]
	switch {
	case !known:
		return readBytes
	case message == nil:
		return isNumber
	}
	return decodes(message.ProtoReflect().New().Interface())
}

func decodes(m proto.Message) func([]byte) error {
	return func(value []byte) error { return proto.Unmarshal(value, m) }
}

// readBytes reads every byte, so that a value beyond the end of the file causes a
// memory fault.
func readBytes(value []byte) error {
	_ = crc32.ChecksumIEEE(value)
	return nil
}
