package logs

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// recount is how long a full quota is believed before the files are looked at
// again.
const recount = time.Second

// Quota is the room that the outputs of all execs of a directory share. Files
// that were there before count, and what is removed makes room again: when the
// quota is full, the files are counted anew, at most once a second, and only when
// there is output that would be dropped. A nil Quota has no limit.
type Quota struct {
	dir *Dir
	max uint64

	// mu guards the fields below.
	// Held across I/O: nobody can take room while the files are counted.
	mu sync.Mutex
	// used is the number of bytes in files, as far as is known, and of those that
	// are being written; pending is the latter alone.
	used, pending uint64
	// counted is when the files were last counted; zero before the first time.
	counted time.Time
}

// NewQuota returns a quota of max bytes; nil when max is 0. The files are counted
// at the first write.
func (d *Dir) NewQuota(max uint64) *Quota {
	if max == 0 {
		return nil
	}
	return &Quota{dir: d, max: max}
}

// take reserves room for at most n bytes and returns for how many there was some.
func (q *Quota) take(now time.Time, n int) int {
	if q == nil {
		return n
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if since := now.Sub(q.counted); q.counted.IsZero() || q.leftLocked() < uint64(n) && (since >= recount || since < 0) {
		q.counted = now
		// What cannot be counted now is believed to be as it was.
		if used, err := q.dir.outputBytes(); err == nil {
			q.used = used + q.pending
		}
	}
	n = int(min(uint64(n), q.leftLocked()))
	q.used += uint64(n)
	q.pending += uint64(n)
	return n
}

func (q *Quota) leftLocked() uint64 { return q.max - min(q.used, q.max) }

// commit tells how many of the reserved bytes were written; the others are free again.
func (q *Quota) commit(taken, written int) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending -= uint64(taken)
	q.used -= min(q.used, uint64(taken-written))
}

// outputBytes sums up the raw output in the directory.
func (d *Dir) outputBytes() (sum uint64, err error) {
	var fd int
	if err := d.at(func(dirfd int) (err error) {
		fd, err = openBeneath(dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		return err
	}); err != nil {
		return 0, d.describe(".", err)
	}
	list := os.NewFile(uintptr(fd), d.path)
	defer func() { _ = list.Close() }()
	_, err = eachName(context.Background(), list, func(name string) error {
		if !strings.HasSuffix(name, suffixStdout) && !strings.HasSuffix(name, suffixStderr) {
			return nil
		}
		var st unix.Stat_t
		if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			sum += uint64(max(st.Size, 0))
		}
		return nil // a file that is gone takes no room
	})
	return sum, err
}
