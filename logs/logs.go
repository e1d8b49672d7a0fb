// Package logs keeps the output of execs in files: a writer for the supervisor,
// a reader for the daemon, the status file beside them, and their removal.
//
// The files of an exec stand in the log directory of its sandbox:
//
//	{exec_id}.stdout.log   raw bytes
//	{exec_id}.stderr.log   raw bytes
//	{exec_id}.index        order, time and checksum of the bytes (record.go)
//	{exec_id}.status       what became of the exec (status.go)
//
// The directory is shared with a container in which anything may run. Whoever
// reads it takes every name, size and byte in it for a claim: files are opened
// beneath a directory handle, must be regular with one link, and are never
// mapped or read into memory as a whole.
package logs

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
)

// Stream is one of the two outputs of an exec. The numbers are those of the
// index and of the public API.
type Stream uint8

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// String returns "stdout" or "stderr".
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return fmt.Sprintf("stream %d", uint8(s))
}

// Cursor is a place in the two streams of an exec: the number of bytes before
// it in each.
type Cursor struct {
	Stdout, Stderr uint64
}

// Beyond tells whether c is past the end of one of the streams, when size is
// what they hold.
func (c Cursor) Beyond(size Cursor) bool {
	return c.Stdout > size.Stdout || c.Stderr > size.Stderr
}

// Errors of this package are told apart with errors.Is; each wraps its class of
// github.com/containerd/errdefs.
var (
	// ErrNotExist says that the files are not there, or not there yet.
	ErrNotExist = fmt.Errorf("no such log: %w", errdefs.ErrNotFound)
	// ErrTampered says that something else stands where a log file should be.
	ErrTampered = fmt.Errorf("log files were tampered with: %w", errdefs.ErrDataLoss)
	// ErrDamaged says that a status file holds no whole status.
	ErrDamaged = fmt.Errorf("status file is damaged: %w", errdefs.ErrDataLoss)
)

// No suffix is the end of another one, so that two exec ids never share a file.
const (
	suffixStdout = ".stdout.log"
	suffixStderr = ".stderr.log"
	suffixIndex  = ".index"
	suffixStatus = ".status"
)

// Suffixes are the ends of the names of an exec's files; what stands before one
// of them is the exec id.
func Suffixes() []string {
	return []string{suffixStdout, suffixStderr, suffixIndex, suffixStatus}
}

// StdoutName is the file name of an exec's raw stdout. The id must be valid.
func StdoutName(execID string) string { return execID + suffixStdout }

// StderrName is the file name of an exec's raw stderr. The id must be valid.
func StderrName(execID string) string { return execID + suffixStderr }

// IndexName is the file name of an exec's index. The id must be valid.
func IndexName(execID string) string { return execID + suffixIndex }

// StatusName is the file name of an exec's status. The id must be valid.
func StatusName(execID string) string { return execID + suffixStatus }

// checkID is the one place that keeps names with a slash, dots or a NUL out of
// the paths that are built here.
func checkID(id string) error {
	if !ids.Valid(id) {
		return fmt.Errorf("%q cannot name a log: %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}
