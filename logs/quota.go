package logs

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
)

// recount is the minimum time between two counts of the files when the quota is full.
const recount = time.Second

// journalReserve is how many bytes journals and checkpoints may have when output has reached
// the limit, so that a command that prints too much costs no agent its reports. The folder of the logs may
// grow beyond the limit by more than that (package daemon/retention).
const journalReserve = 64 << 20

// Quota limits the total size of the output of all execs of a directory, with its index,
// journals and checkpoints: the index of short writes is longer than their output. Journals
// may exceed the limit by a reserve, and checkpoints by half of it. Files that existed before count too. Removed files free their space:
// when the quota is full, the files are counted again. That happens at most once a second,
// and only if something would be dropped. A nil Quota has no limit.
type Quota struct {
	dir *Dir
	// max is the limit, and reserve what journals may have beyond it.
	max, reserve uint64

	// mu guards the fields below.
	// Held across I/O: no space may be reserved while the files are counted.
	mu sync.Mutex
	// used is the known number of bytes in files plus the bytes being written. pending is
	// the number of bytes being written.
	used, pending uint64
	// counted is the time of the last count of the files, or zero.
	counted time.Time
}

// NewQuota returns a quota of max bytes, or nil if max is 0. The first write counts the
// files.
func (d *Dir) NewQuota(max uint64) *Quota {
	if max == 0 {
		return nil
	}
	return &Quota{dir: d, max: max, reserve: journalReserve}
}

// take reserves space for at most n bytes of output and returns the number of bytes
// reserved.
func (q *Quota) take(now time.Time, n int) int {
	if q == nil {
		return n
	}
	return q.takeWithin(now, n, q.max)
}

// takeForJournal is take for a journal.
func (q *Quota) takeForJournal(now time.Time, n int) int {
	if q == nil {
		return n
	}
	return q.takeWithin(now, n, q.max+q.reserve)
}

// takeForCheckpoint is take for a checkpoint.
func (q *Quota) takeForCheckpoint(now time.Time, n int) int {
	if q == nil {
		return n
	}
	return q.takeWithin(now, n, q.max+q.reserve/2)
}

func (q *Quota) takeWithin(now time.Time, n int, max uint64) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if since := now.Sub(q.counted); q.counted.IsZero() || q.leftLocked(max) < uint64(n) && (since >= recount || since < 0) {
		q.counted = now
		// If the count fails, keep the old value.
		if used, err := q.dir.outputBytes(); err == nil {
			q.used = used + q.pending
		}
	}
	n = int(min(uint64(n), q.leftLocked(max)))
	q.used += uint64(n)
	q.pending += uint64(n)
	return n
}

func (q *Quota) leftLocked(max uint64) uint64 { return max - min(q.used, max) }

// commit says how many of the reserved bytes were written. It frees the others.
func (q *Quota) commit(taken, written int) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending -= uint64(taken)
	q.used -= min(q.used, uint64(taken-written))
}

// release says that files with that many bytes were removed.
func (q *Quota) release(bytes uint64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= min(q.used, bytes)
}

// counts reports whether a file counts towards the quota by its name.
func counts(name string) bool {
	for _, suffix := range [...]string{suffixStdout, suffixStderr, suffixIndex, suffixJournal, suffixResults, checkpointTempSuffix} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return slices.ContainsFunc(checkpointSuffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}

// outputBytes returns the total size of the output, its index, the journals and the
// checkpoints in the directory.
func (d *Dir) outputBytes() (sum uint64, err error) {
	var list *os.File
	if err := d.at(func(dirfd int) (err error) {
		list, err = filesystem.Open(dirfd, ".")
		return err
	}); err != nil {
		return 0, d.describe(".", err)
	}
	defer func() { _ = list.Close() }()
	fd := int(list.Fd())
	err = filesystem.Names(context.Background(), list, func(name string) error {
		if !counts(name) {
			return nil
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			sum += uint64(max(st.Size, 0))
		}
		return nil // a removed file takes no space
	})
	return sum, err
}
