package retention

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// look is the pause between two looks at the free space of the disk.
	look = time.Second
	// passRoomEvery is the pause between two counts while the disk does not fill up.
	passRoomEvery = 10 * time.Second
	// share and shareFilling bound the part of the time that counting takes: a thousandth, and
	// a tenth while the disk fills up.
	share, shareFilling = 1000, 10
	// A disk fills up if it has lost so many bytes or files since the last count.
	fillingBytes, fillingFiles = 128 << 20, 4096
)

// freeSpace is what is free in a file system.
type freeSpace struct{ bytes, files uint64 }

// pace decides when to count next.
type pace struct {
	// last is when the last count began, and took how long it took. free is what was free
	// then.
	last time.Time
	took time.Duration
	free freeSpace
}

// due reports whether to count now.
func (p pace) due(now time.Time, free freeSpace) bool {
	since := now.Sub(p.last)
	if p.last.IsZero() || since < 0 {
		return true
	}
	filling := p.free.bytes > free.bytes+fillingBytes || p.free.files > free.files+fillingFiles
	return filling && since >= shareFilling*p.took || since >= max(passRoomEvery, share*p.took)
}

// Run counts until ctx ends: every 10 s, and within a second while the disk fills up.
func (k *Room) Run(ctx context.Context) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var p pace
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if len(k.running()) == 0 {
			k.Pass(ctx) // only forgets what is known
			continue
		}
		now, free := k.now(), k.free()
		if !p.due(now, free) {
			continue
		}
		k.Pass(ctx)
		p = pace{last: now, took: k.now().Sub(now), free: free}
	}
}

// free returns what is free for logs and for the files of supervisors.
func (k *Room) free() (sum freeSpace) {
	for _, dir := range []string{k.paths.Logs(), k.paths.Guests()} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil {
			sum.bytes += st.Bfree * uint64(st.Bsize)
			sum.files += st.Ffree
		}
	}
	return sum
}
