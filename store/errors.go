package store

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Errors of this package, for use with errors.Is. Each is wrapped in a
// *fault.Error whose message says what to do. A RecordError is not.
var (
	// ErrDamaged: the file is empty, truncated, zeroed or inconsistent.
	ErrDamaged = errors.New("database damaged")
	// ErrLost: the install's database is missing. The fault's metadata has the
	// "install_id"; the install's containers, networks and volumes carry it as a
	// label.
	ErrLost = errors.New("database lost")
	// ErrInstallMismatch: sentinel and database name different installs.
	ErrInstallMismatch = errors.New("database of another install")
	// ErrNewerSchema: a newer agbox wrote the database.
	ErrNewerSchema = errors.New("database schema is newer")
	// ErrLocked: another process has the database open.
	ErrLocked = errors.New("database locked")
	// ErrCheckUnfinished: the check ended without a verdict, for example because
	// it was killed or timed out.
	ErrCheckUnfinished = errors.New("database check unfinished")
	// ErrReadOnly: an earlier fsync failed, or the file was damaged while it was
	// open. What is on the disk is unknown until the database is opened again.
	ErrReadOnly = errors.New("database is read-only")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("database closed")
	// ErrReserved: the id was reserved before.
	ErrReserved = errors.New("id is reserved")
)

// RecordError describes one record that cannot be read. Other records are not affected.
type RecordError struct {
	// Bucket and Key identify the record. A numeric key is written in decimal.
	Bucket, Key string
	// Err says why it cannot be read.
	Err error
}

// Error names the record.
func (e *RecordError) Error() string {
	return fmt.Sprintf("record %s in %s cannot be read: %v", e.Key, e.Bucket, e.Err)
}

// Unwrap returns the class ErrDataLoss and the underlying error.
func (e *RecordError) Unwrap() []error { return []error{errdefs.ErrDataLoss, e.Err} }

// storeFault makes the fault for an error that concerns the file as a whole.
func storeFault(class, sentinel, cause error, format string, args ...any) *fault.Error {
	if cause != nil {
		sentinel = fmt.Errorf("%w: %w", sentinel, cause)
	}
	return fault.New(class, agboxv1.ErrorReason_STORE_FAILED, format, args...).Because(sentinel)
}

func damaged(path string, cause error) error {
	return storeFault(errdefs.ErrDataLoss, ErrDamaged, cause,
		"The database %s is damaged (%v). Nothing was changed. Restore it from a backup; without one, move it to another place "+
			"(leave the file install-id where it is) and run \"agbox doctor --fix\", which adopts the sandboxes whose containers "+
			"are still there.", path, brief(cause)).With("path", path)
}

// brief returns the first line of err without the prefix "database damaged",
// which the sentence around it already says.
func brief(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(strings.TrimSpace(line), ErrDamaged.Error()+": ")
}

func lost(path, sentinel, installID string) error {
	return storeFault(errdefs.ErrDataLoss, ErrLost, nil,
		"The database %s is missing, but %s says that this install (%s) had one. Put the database back, for example from a backup. "+
			"Without one, \"agbox doctor\" shows which sandboxes are still there, and \"agbox doctor --fix\" adopts them with their commands.",
		path, sentinel, installID).With("path", path).With("install_id", installID)
}

func mismatch(path, sentinel, inSentinel, inDatabase string) error {
	return storeFault(errdefs.ErrFailedPrecondition, ErrInstallMismatch, nil,
		"The database %s belongs to install %q, but %s names %q. Put back the file that belongs here. "+
			"If the database is the right one, remove %s; the daemon writes it again from the database.",
		path, inDatabase, sentinel, inSentinel, sentinel).With("path", path)
}

func newerSchema(path string, version uint32) error {
	return storeFault(errdefs.ErrFailedPrecondition, ErrNewerSchema, nil,
		"The database %s has schema %d, but this agbox supports at most %d. Start the newer agbox that wrote it. Nothing was changed.",
		path, version, SchemaVersion).With("path", path)
}

func locked(path string) error {
	return storeFault(errdefs.ErrUnavailable, ErrLocked, nil,
		"The database %s is open in another process. Stop that process, or wait until it ends.", path).With("path", path)
}

func closed() error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_DAEMON_STOPPING,
		"The daemon is stopping; try again in a moment.").Because(ErrClosed)
}

// cannotOpen is for failures of the operating system, such as permissions.
func cannotOpen(path string, cause error) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_STORE_FAILED,
		"The database %s cannot be opened: %v. Fix the cause and start the daemon again. Nothing was changed.", path, cause).
		Because(cause).With("path", path)
}

// readOnly is the error of every update after the store has stopped writing.
func readOnly(path string, cause error) error {
	return storeFault(errdefs.ErrUnavailable, ErrReadOnly, cause,
		"The database %s accepts no more changes: %v. Check the disk (see dmesg), then restart the daemon, "+
			"which checks what has reached the disk.", path, cause).With("path", path)
}

// commitFailed is for a transaction that was rolled back; a later one may succeed.
func commitFailed(path string, cause error) error {
	f := fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_STORE_FAILED,
		"The database %s cannot be written: %v. Nothing was changed. Fix the cause and try again.", path, cause)
	if noSpace(cause) {
		f.Message = fmt.Sprintf("No disk space is left for the database %s (%v). Nothing was changed. Free some space and try again.",
			path, cause)
	}
	return f.Because(cause).With("path", path)
}

// noSpace also matches the text, because bbolt's errors of growing the file
// do not wrap the errno.
func noSpace(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, errno) || strings.Contains(err.Error(), errno.Error()) {
			return true
		}
	}
	return false
}

// syncFailed distinguishes a failed fsync from a failed write. A failed write
// is known not to be on the disk. After a failed fsync the kernel may mark pages
// as clean that never reached the disk, so a later fsync that succeeds proves
// nothing.
//
// A failed write is an fs.PathError. A failed fdatasync is a bare errno. The
// fsync after growing the file can be recognized only by its text.
func syncFailed(err error) bool {
	var write *fs.PathError
	if errors.As(err, &write) {
		return false
	}
	var errno syscall.Errno
	return errors.As(err, &errno) || strings.HasPrefix(err.Error(), "file sync error:")
}

func reserved(kind, id string, reason agboxv1.ErrorReason) error {
	return fault.New(errdefs.ErrAlreadyExists, reason,
		"The %s id %q was used before; choose another one.", kind, id).Because(ErrReserved).With(kind+"_id", id)
}

func invalidID(kind, id string) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
		"The %s id %q is not valid: use a letter or digit, then up to 199 letters, digits, '_', '.' or '-'.", kind, id)
}

func notFound(what, id string) error {
	return fmt.Errorf("no %s of %q: %w", what, id, errdefs.ErrNotFound)
}

// guard runs fn and returns ErrDamaged for the panics that a damaged mapped file
// causes: a memory fault beyond a truncation, or a failed assertion of bbolt.
// Other panics come from fn's own code and are raised again.
func guard(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			if err = damageOf(r); err == nil {
				panic(r)
			}
		}
	}()
	return fn()
}

// guardBolt is guard for code that is entirely bbolt's: there every panic means damage.
func guardBolt(fn func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: its pages contradict each other: %v", ErrDamaged, r)
		}
	}()
	return fn()
}

// damageOf returns ErrDamaged for a panic caused by a damaged file, and nil for
// any other panic.
func damageOf(recovered any) error {
	switch r := recovered.(type) {
	case interface{ Addr() uintptr }: // a memory fault, see debug.SetPanicOnFault
		return fmt.Errorf("%w: %v", ErrDamaged, r)
	case string:
		if strings.HasPrefix(r, "assertion failed: ") || strings.HasPrefix(r, "invalid page type: ") {
			return fmt.Errorf("%w: %s", ErrDamaged, r)
		}
	}
	return nil
}

func isDamage(err error) bool { return errors.Is(err, ErrDamaged) }
