// Package logs keeps the output of execs in files: a writer for the supervisor,
// a reader for the daemon, the status file beside them, and their removal.
//
// The log directory of a sandbox has these files for each exec:
//
//	{exec_id}.stdout.log   raw bytes
//	{exec_id}.stderr.log   raw bytes
//	{exec_id}.index        order, time and checksum of the bytes (record.go)
//	{exec_id}.status       what became of the exec (status.go)
//	{exec_id}.journal.jsonl, {exec_id}.ckpt-0.json to .ckpt-5.json
//	                       what the incarnation of an agent has reported and saved
//	{exec_id}.results      what its calls gave, if that is long
//
// The directory is shared with a container that may run anything. Readers trust no name,
// size or byte in it: files are opened relative to a directory handle, must be regular
// with one link, and are never mapped or read into memory as a whole.
package logs

import (
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
)

// Stream is one of the two output streams of an exec. The index and the public API use
// the same numbers.
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

// Cursor is a position in the two streams of an exec: the number of bytes before it in
// each.
type Cursor struct {
	Stdout, Stderr uint64
}

// Beyond reports whether c is past the end of one of the streams. size is the current
// size of the streams.
func (c Cursor) Beyond(size Cursor) bool {
	return c.Stdout > size.Stdout || c.Stderr > size.Stderr
}

// The errors of this package. Test for them with errors.Is. Each wraps its class of
// github.com/containerd/errdefs.
var (
	// ErrNotExist means that the files do not exist, or do not exist yet.
	ErrNotExist = fmt.Errorf("no such log: %w", errdefs.ErrNotFound)
	// ErrTampered means that the name of a log file belongs to something else.
	ErrTampered = fmt.Errorf("log files were tampered with: %w", errdefs.ErrDataLoss)
	// ErrDamaged means that a status file has no complete status.
	ErrDamaged = fmt.Errorf("status file is damaged: %w", errdefs.ErrDataLoss)
)

// No suffix is the end of another one, so two exec ids never share a file.
const (
	suffixStdout = ".stdout.log"
	suffixStderr = ".stderr.log"
	suffixIndex  = ".index"
	suffixStatus = ".status"
	// suffixJournal is the journal of an incarnation of an agent.
	suffixJournal = ".journal.jsonl"
	// suffixBeat is the newest beat of an incarnation of an agent.
	suffixBeat = ".beat"
)

// Suffixes returns the suffixes of the names of an exec's files but its checkpoints and results. The
// rest of the name is the exec id.
func Suffixes() []string {
	return []string{suffixStdout, suffixStderr, suffixIndex, suffixStatus, suffixJournal, suffixBeat}
}

// StdoutName is the file name of an exec's raw stdout. The id must be valid.
func StdoutName(execID string) string { return execID + suffixStdout }

// StderrName is the file name of an exec's raw stderr. The id must be valid.
func StderrName(execID string) string { return execID + suffixStderr }

// IndexName is the file name of an exec's index. The id must be valid.
func IndexName(execID string) string { return execID + suffixIndex }

// StatusName is the file name of an exec's status. The id must be valid.
func StatusName(execID string) string { return execID + suffixStatus }

// JournalName is the file name of an exec's journal. The id must be valid.
func JournalName(execID string) string { return execID + suffixJournal }

// BeatName is the file name of the newest beat of an exec. The id must be valid.
func BeatName(execID string) string { return execID + suffixBeat }

// checkID is the only check that keeps slashes, dots and NUL out of the paths that this
// package builds.
func checkID(id string) error {
	if !ids.Valid(id) {
		return fmt.Errorf("%q cannot name a log: %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckpointSlots is the number of files that an exec has for its newest checkpoints. A new
// one replaces the oldest, so the newest CheckpointSlots-1 are whole at any time.
const CheckpointSlots = 6

// checkpointSuffixes has the suffixes of the names of checkpoints, by slot.
var checkpointSuffixes = func() (all []string) {
	for slot := range CheckpointSlots {
		all = append(all, ".ckpt-"+strconv.Itoa(slot)+".json")
	}
	return all
}()

// checkpointTempSuffix is that of a checkpoint that is being written. A leading dot belongs
// to its name too.
const checkpointTempSuffix = ".ckpt"

// suffixResults is what calls of an incarnation of an agent gave.
const suffixResults = ".results"
