// This file bounds what a sandbox may put into the two folders of the host that its
// container can write: that of its logs and that of the supervisor's socket. The checkpoints of
// its agents, which the daemon copies out of the first, count as well.
//
// File systems limit a folder only with project quotas, which need root and a mount
// option, so the daemon counts. What may be in the folders is in the boot configuration, as
// the sandbox was made with it. A sandbox that has more is stopped at once, with
// HOST_FOLDERS_FULL, and what agbox has not put there is removed. If that is not enough, the
// largest logs go. The supervisor keeps the output of commands within the limit itself
// (logs.Quota), so only a process that writes there on its own reaches it. What cannot be
// read or is nested too deeply counts as too much.
//
// The stop is an event, SANDBOX_STOP_REQUESTED. The container is killed without grace, and
// the record keeps the reason until the next start, which first tidies the folders and fails
// if too much is left. What only root can remove is left to a container (daemon/reconcile,
// reclaim.go).

package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// DefaultFiles is how many files that belong to no recorded command may be in the folders.
// agbox itself makes about ten: the socket and spare files.
const DefaultFiles = 10000

const (
	// spareBytes is what the folders may hold besides the output.
	spareBytes = 256 << 20
	// bytesPerExec is the space for the status file of a recorded exec.
	bytesPerExec = 48 << 10
	// filesPerExec is how many files a recorded exec has, with one that is being written.
	filesPerExec = 5
)

// Bytes returns what the folders of a new sandbox may hold, given the limit of its output.
// 0 means no limit.
func Bytes(maxOutput uint64) uint64 {
	if maxOutput == 0 {
		return 0
	}
	return maxOutput + spareBytes
}

// Ledger is the ledger as this package needs it.
type Ledger interface {
	Sandboxes() []ledger.Sandbox
	Sandbox(id string) (ledger.Sandbox, bool)
	AgentsIn(sandboxID string) []ledger.Agent
	RecordedExecs(ctx context.Context, sandboxID string) (map[string]bool, error)
	// RecountJournals says that files of recorded execs were removed.
	RecountJournals(sandboxID string)
	StopBecause(ctx context.Context, id string, reason agboxv1.ErrorReason, sentence string) (ledger.Sandbox, error)
}

// RoomOptions are the dependencies of a Keeper.
type RoomOptions struct {
	Ledger Ledger
	Paths  paths.Install
	// Stopped is called for a sandbox that must be stopped now. It must not block.
	Stopped func(sandboxID string)
	Now     func() time.Time
	Log     *slog.Logger
}

// Room counts what sandboxes have in their folders. Its methods may be called from
// several goroutines.
type Room struct {
	ledger  Ledger
	paths   paths.Install
	stopped func(sandboxID string)
	now     func() time.Time
	log     *slog.Logger
	// processes is byGroups.
	processes func() map[string][]int

	mu sync.Mutex // guards the fields below
	// known are the counts of the last pass. A sandbox that was tidied since has none.
	known map[string]Use
	// looked is what was free when descriptors were looked at last.
	looked freeSpace
}

// NewRoom returns a Keeper. It counts nothing by itself before Run.
func NewRoom(o RoomOptions) *Room {
	return &Room{ledger: o.Ledger, paths: o.Paths, stopped: o.Stopped, now: o.Now, log: o.Log, processes: byGroups, known: make(map[string]Use)}
}

// Use is what a sandbox has in its folders, and what it may have.
type Use struct {
	logs.Usage
	// MaxBytes and MaxFiles are the limits. 0 means none.
	MaxBytes, MaxFiles uint64
	// Held is the part of Bytes in files without names that processes have open, and Saved that
	// of the checkpoints of its agents, which are kept outside its folders.
	Held, Saved uint64
	// Hidden means that the folders cannot be counted, because something in the sandbox
	// has closed them to the daemon or nested them without end.
	Hidden bool
}

// Over reports whether the sandbox has more than it may.
func (u Use) Over() bool {
	return u.Hidden || u.MaxBytes > 0 && u.Bytes > u.MaxBytes || u.MaxFiles > 0 && u.Files > u.MaxFiles
}

// mostlySaved reports whether checkpoints take more than half of what the sandbox may have.
func (u Use) mostlySaved() bool { return u.MaxBytes > 0 && u.Saved > u.MaxBytes/2 }

// Use counts what a sandbox has in its folders. It counts at most one file more than the
// sandbox may have, and no files without names.
func (k *Room) Use(ctx context.Context, sandboxID string) (Use, error) {
	return k.use(ctx, sandboxID, 0)
}

// use is Use, with so many bytes in files without names.
func (k *Room) use(ctx context.Context, sandboxID string, held uint64) (Use, error) {
	boot, err := k.readBoot(sandboxID)
	if err != nil {
		return Use{}, err
	}
	use := Use{MaxBytes: boot.GetMaxFolderBytes(), MaxFiles: boot.GetMaxFolderFiles(), Held: held}
	if err := k.count(ctx, sandboxID, &use); err != nil || !use.Over() || use.Hidden {
		return use, err
	}
	// Only now, because it costs more: recorded execs may have more.
	recorded, err := k.ledger.RecordedExecs(ctx, sandboxID)
	if err != nil {
		return use, err
	}
	if use.MaxBytes > 0 {
		use.MaxBytes += uint64(len(recorded)) * bytesPerExec
	}
	if use.MaxFiles > 0 {
		use.MaxFiles += uint64(len(recorded)) * filesPerExec
	}
	return use, k.count(ctx, sandboxID, &use)
}

// Known returns the last count of a sandbox, and counts if there is none or if the sandbox has
// stopped since. It returns false if that fails, for example because the sandbox has no folders yet.
func (k *Room) Known(ctx context.Context, sandboxID string) (Use, bool) {
	sb, _ := k.ledger.Sandbox(sandboxID)
	k.mu.Lock()
	use, known := k.known[sandboxID]
	k.mu.Unlock()
	if known && mayRun(sb) {
		return use, true
	}
	use, err := k.Use(ctx, sandboxID)
	return use, err == nil
}

// before returns the last count of a sandbox.
func (k *Room) before(sandboxID string) Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[sandboxID]
}

// shrunkTo reports whether so much of the disk is gone that descriptors must be looked at.
func (k *Room) shrunkTo(free freeSpace) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if free.bytes+heldAfter > k.looked.bytes && free.bytes <= k.looked.bytes {
		return false
	}
	lost := free.bytes < k.looked.bytes
	k.looked = free
	return lost
}

// forget drops the last count of a sandbox.
func (k *Room) forget(sandboxID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, sandboxID)
}

// count replaces the usage of use.
func (k *Room) count(ctx context.Context, sandboxID string, use *Use) error {
	use.Saved = 0
	for _, a := range k.ledger.AgentsIn(sandboxID) {
		for _, c := range a.Checkpoints {
			use.Saved += c.GetBytes()
		}
	}
	use.Usage = logs.Usage{Bytes: use.Held + use.Saved}
	for _, path := range []string{k.paths.SandboxLogs(sandboxID), k.paths.GuestLink(sandboxID)} {
		most := ^uint64(0)
		if use.MaxFiles > 0 {
			most = use.MaxFiles - min(use.Files, use.MaxFiles)
		}
		part, err := usageOf(ctx, path, most)
		use.Bytes += part.Bytes
		use.Files += part.Files
		switch {
		case errors.Is(err, logs.ErrNotExist):
		case errdefs.IsPermissionDenied(err), errors.Is(err, logs.ErrTooDeep):
			use.Hidden = true
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

func usageOf(ctx context.Context, path string, most uint64) (logs.Usage, error) {
	dir, err := logs.OpenDir(path)
	if errors.Is(err, unix.EACCES) {
		return logs.Usage{}, errors.Join(errdefs.ErrPermissionDenied, err)
	}
	if err != nil {
		return logs.Usage{}, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Usage(ctx, most)
}

func (k *Room) readBoot(sandboxID string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(k.paths.GuestBoot(sandboxID))
	if err != nil {
		return nil, fmt.Errorf("read the supervisor's boot configuration: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := boot.UnmarshalVT(raw); err != nil {
		return nil, fmt.Errorf("decode the supervisor's boot configuration: %w", err)
	}
	return boot, nil
}

// Pass counts every sandbox that may run, and stops those that have more than they may. It reports whether there
// is one.
func (k *Room) Pass(ctx context.Context) bool {
	known := make(map[string]Use)
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.known = known
	}()
	running := k.running()
	held := k.heldBy(running)
	for _, sb := range running {
		use, err := k.use(ctx, sb.ID, held[sb.ID])
		if err != nil {
			// Not an answer: the sandbox may be gone, or its container not made yet.
			k.log.Debug("the folders of a sandbox cannot be counted", "sandbox_id", sb.ID, "error", err)
			continue
		}
		known[sb.ID] = use
		if !use.Over() {
			continue
		}
		k.log.Warn("a sandbox has more in its folders on the host than it may and is stopped",
			"sandbox_id", sb.ID, "bytes", use.Bytes, "max_bytes", use.MaxBytes, "files", use.Files, "max_files", use.MaxFiles, "hidden", use.Hidden)
		if _, err := k.ledger.StopBecause(ctx, sb.ID, agboxv1.ErrorReason_HOST_FOLDERS_FULL, use.sentence()); err != nil {
			k.log.Error("a sandbox that fills the host cannot be stopped; the next count tries again", "sandbox_id", sb.ID, "error", err)
			continue
		}
		k.stopped(sb.ID)
	}
	return len(running) > 0
}

// heldBy returns what sandboxes hold in files without names, by their ids: of all if the disk has shrunk, else of
// those that held something before. It looks at once at all of them, because the processes change.
func (k *Room) heldBy(all []ledger.Sandbox) map[string]uint64 {
	look, bytes := k.shrunkTo(k.free()), make(map[string]uint64)
	var processes map[string][]int
	for _, sb := range all {
		if !look && k.before(sb.ID).Held == 0 {
			continue
		}
		if processes == nil {
			processes = k.processes()
		}
		bytes[sb.ID] = held(k.paths.GuestInit(sb.ID), processes)
	}
	return bytes
}

func (k *Room) running() []ledger.Sandbox {
	return slices.DeleteFunc(k.ledger.Sandboxes(), func(sb ledger.Sandbox) bool { return !mayRun(sb) })
}

func mayRun(sb ledger.Sandbox) bool {
	return (sb.State == machine.Pending || sb.State == machine.Ready) && sb.Want == machine.WantRunning
}

// sentence says why a sandbox was stopped.
func (u Use) sentence() string {
	const advice = "Something in it writes there on its own. \"agbox start\" starts it again after what agbox did not put there is removed."
	switch {
	case u.Hidden:
		return "The daemon stopped it, because something in it changed its log folder on the host so that it cannot be counted. " + advice
	case u.MaxFiles > 0 && u.Files > u.MaxFiles:
		return fmt.Sprintf("The daemon stopped it, because its folders for logs and socket have more than the %d files that they may have. %s", u.MaxFiles, advice)
	}
	const mib = 1 << 20
	if u.mostlySaved() {
		return fmt.Sprintf("The daemon stopped it, because its folders and the checkpoints of its agents have %d MiB (%d of them in checkpoints), and they may have %d MiB. Remove agents that have ended with \"agbox agent rm\", then \"agbox start\" starts it again.", u.Bytes/mib, u.Saved/mib, u.MaxBytes/mib)
	}
	held := ""
	if u.Held > 0 {
		held = fmt.Sprintf(" (%d of them in files that were removed while a process has them open)", u.Held/mib)
	}
	return fmt.Sprintf("The daemon stopped it, because its folders for logs and socket have %d MiB%s, and they may have %d MiB. %s", u.Bytes/mib, held, u.MaxBytes/mib, advice)
}

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
		now, free := k.now(), k.free()
		if !p.due(now, free) {
			continue
		}
		p = pace{}
		if k.Pass(ctx) { // else the next look counts again: a sandbox may have begun to run
			p = pace{last: now, took: k.now().Sub(now), free: free}
		}
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

// heldAfter is how much of the disk must be gone since the last look at descriptors for the
// next one, in bytes. An idle machine is never looked at.
const heldAfter = fillingBytes / 2
