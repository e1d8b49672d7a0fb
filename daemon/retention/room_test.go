package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
)

// book is a ledger of a few sandboxes.
type book struct {
	boxes    []ledger.Sandbox
	recorded map[string]bool
	agents   []ledger.Agent
	// reasons has what StopBecause was called with, by sandbox.
	reasons map[string]string
	// recounted are the sandboxes that RecountJournals was called with.
	recounted []string
}

func (b *book) Sandboxes() []ledger.Sandbox { return slices.Clone(b.boxes) }

func (b *book) Sandbox(id string) (ledger.Sandbox, bool) {
	i := slices.IndexFunc(b.boxes, func(sb ledger.Sandbox) bool { return sb.ID == id })
	if i < 0 {
		return ledger.Sandbox{}, false
	}
	return b.boxes[i], true
}

func (b *book) RecordedExecs(context.Context, string) (map[string]bool, error) {
	return b.recorded, nil
}

func (b *book) RecountJournals(id string) { b.recounted = append(b.recounted, id) }

func (b *book) AgentsIn(string) []ledger.Agent { return b.agents }

func (b *book) StopBecause(_ context.Context, id string, reason agboxv1.ErrorReason, sentence string) (ledger.Sandbox, error) {
	b.reasons[id] = reason.String() + ": " + sentence
	return ledger.Sandbox{}, nil
}

// bench is an install with a READY sandbox a.
type bench struct {
	*Room
	t    *testing.T
	book *book
	// interrupted are the sandboxes that the loop was told to stop.
	interrupted []string
}

// newBench makes a bench whose sandbox may have 1 MiB in 20 files.
func newBench(t *testing.T) *bench {
	t.Helper()
	dir := t.TempDir()
	b := &bench{t: t, book: &book{recorded: map[string]bool{}, reasons: map[string]string{}}}
	b.Room = NewRoom(RoomOptions{
		Ledger: b.book, Paths: paths.Install{Data: dir}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Stopped: func(id string) { b.interrupted = append(b.interrupted, id) },
	})
	b.add("a", &guestv1.BootConfig{MaxFolderBytes: 1 << 20, MaxFolderFiles: 20})
	b.write("a.stdout.log", 100)
	b.book.recorded["a"] = true
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// add makes a READY sandbox with its folders.
func (b *bench) add(id string, boot *guestv1.BootConfig) {
	b.t.Helper()
	b.book.boxes = append(b.book.boxes, ledger.Sandbox{Record: machine.Record{ID: id, State: machine.Ready}})
	b.must(os.MkdirAll(b.paths.SandboxLogs(id), 0o700))
	b.must(os.MkdirAll(b.paths.GuestLink(id), 0o700))
	raw, err := boot.MarshalVT()
	b.must(err)
	b.must(os.WriteFile(b.paths.GuestBoot(id), raw, 0o600))
}

// write makes a file in the log folder of a.
func (b *bench) write(name string, size int) {
	b.t.Helper()
	path := filepath.Join(b.paths.SandboxLogs("a"), name)
	b.must(os.MkdirAll(filepath.Dir(path), 0o700))
	b.must(os.WriteFile(path, make([]byte, size), 0o600))
}

func (b *bench) left(folder string) []string {
	b.t.Helper()
	entries, err := os.ReadDir(folder)
	b.must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestASandboxWithinItsLimitsRuns(t *testing.T) {
	b := newBench(t)
	b.write("b.stdout.log", 500<<10)
	b.Pass(t.Context())
	if len(b.book.reasons) > 0 || b.interrupted != nil {
		t.Errorf("it was stopped: %v", b.book.reasons)
	}
	if use, ok := b.Known(t.Context(), "a"); !ok || use.Files != 2 || use.Bytes < 500<<10 || use.MaxBytes != 1<<20 || use.MaxFiles != 20 {
		t.Errorf("what is known is %+v, %v", use, ok)
	}
}

func TestASandboxThatFillsItsFoldersIsStopped(t *testing.T) {
	for name, c := range map[string]struct {
		fill func(b *bench)
		want string
	}{
		"with one large file":    {func(b *bench) { b.write("stranger", 2<<20) }, "have 2 MiB, and they may have 1 MiB"},
		"with a log of a record": {func(b *bench) { b.write("a.stdout.log", 2<<20) }, "have 2 MiB"},
		"with a tree":            {func(b *bench) { b.write("x/y/z", 2<<20) }, "have 2 MiB"},
		"with many files": {func(b *bench) {
			for n := range 30 {
				b.write(fmt.Sprint(n), 0)
			}
		}, "more than the 25 files"}, // 20, and 5 for the recorded exec
		"in the folder of the socket": {func(b *bench) {
			b.must(os.WriteFile(filepath.Join(b.paths.GuestLink("a"), "x"), make([]byte, 2<<20), 0o600))
		}, "have 2 MiB"},
		"deeper than is counted": {func(b *bench) { b.write(strings.Repeat("d/", 40)+"x", 0) }, "cannot be counted"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.add("b", &guestv1.BootConfig{MaxFolderBytes: 1 << 20, MaxFolderFiles: 20})
			c.fill(b)
			b.Pass(t.Context())
			if why := b.book.reasons["a"]; !strings.HasPrefix(why, "HOST_FOLDERS_FULL: ") || !strings.Contains(why, c.want) {
				t.Errorf("it is stopped for %q", why)
			}
			if !slices.Equal(b.interrupted, []string{"a"}) {
				t.Errorf("stopped are %q", b.interrupted)
			}
		})
	}
}

func TestRecordedExecsHaveRoomForTheirFiles(t *testing.T) {
	b := newBench(t)
	for n := range 10 {
		id := fmt.Sprint("e", n)
		b.book.recorded[id] = true
		for _, suffix := range []string{".stdout.log", ".stderr.log", ".index", ".status"} {
			b.write(id+suffix, 10)
		}
	}
	b.Pass(t.Context())
	if len(b.book.reasons) > 0 {
		t.Errorf("it was stopped: %v", b.book.reasons)
	}
}

func TestASandboxOfAnOlderVersionHasNoLimit(t *testing.T) {
	b := newBench(t)
	raw, err := new(guestv1.BootConfig).MarshalVT()
	b.must(err)
	b.must(os.WriteFile(b.paths.GuestBoot("a"), raw, 0o600))
	b.write("stranger", 2<<20)
	b.Pass(t.Context())
	b.must(b.Tidy(t.Context(), "a"))
	if len(b.book.reasons) > 0 || len(b.left(b.paths.SandboxLogs("a"))) != 2 {
		t.Errorf("it was stopped (%v) or cleaned", b.book.reasons)
	}
}

func TestASandboxThatIsBeingStoppedIsNotStoppedAgain(t *testing.T) {
	b := newBench(t)
	b.book.boxes[0].Want = machine.WantStopped
	b.write("stranger", 2<<20)
	b.Pass(t.Context())
	if len(b.book.reasons) > 0 {
		t.Errorf("it was stopped: %v", b.book.reasons)
	}
}

func TestTidyLeavesAFolderWithinItsLimitsAlone(t *testing.T) {
	b := newBench(t)
	b.write("stranger", 100)
	b.must(b.Tidy(t.Context(), "a"))
	if left := b.left(b.paths.SandboxLogs("a")); !slices.Equal(left, []string{"a.stdout.log", "stranger"}) {
		t.Errorf("left are %q", left)
	}
	if err := b.Tidy(t.Context(), "none"); err != nil {
		t.Errorf("a sandbox without folders: %v", err)
	}
}

func TestTidyRemovesStrangersFirstThenTheLargestLogs(t *testing.T) {
	b := newBench(t)
	b.write("stranger", 2<<20)
	b.Pass(t.Context())
	b.write("unrecorded.status", 10)
	b.must(os.WriteFile(filepath.Join(b.paths.GuestLink("a"), "x"), nil, 0o600))
	b.must(os.WriteFile(filepath.Join(b.paths.GuestLink("a"), paths.LinkSocket), nil, 0o600))
	b.must(b.Tidy(t.Context(), "a"))
	if left := b.left(b.paths.SandboxLogs("a")); !slices.Equal(left, []string{"a.stdout.log"}) {
		t.Errorf("left are %q", left)
	}
	if left := b.left(b.paths.GuestLink("a")); !slices.Equal(left, []string{paths.LinkSocket}) {
		t.Errorf("left beside the socket are %q", left)
	}
	if use, ok := b.Known(t.Context(), "a"); !ok || use.Bytes > 1<<20 || use.Files != 2 {
		t.Errorf("what is known is %+v, %v", use, ok)
	}
	if n := len(b.book.recounted); n > 0 {
		t.Errorf("journals are counted anew %d times without a removal", n)
	}
	b.book.recorded["b"] = true
	b.write("b.stdout.log", 3<<20)
	b.must(b.Tidy(t.Context(), "a"))
	if left := b.left(b.paths.SandboxLogs("a")); !slices.Equal(left, []string{"a.stdout.log"}) {
		t.Errorf("left are %q", left)
	}
	if !slices.Equal(b.book.recounted, []string{"a"}) {
		t.Errorf("the journals of %q are counted anew; want those of a", b.book.recounted)
	}
}

func TestWhatCannotBeRemovedIsAnErrorThatNamesTheFolder(t *testing.T) {
	b := newBench(t)
	b.must(os.RemoveAll(b.paths.SandboxLogs("a")))
	b.must(os.Symlink("/", b.paths.SandboxLogs("a")))
	if err := b.Clear(t.Context(), "a"); err == nil {
		t.Error("a link in place of the folder was followed")
	}
	err := b.full("a", Use{}, nil)
	if fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_FOLDERS_FULL || !strings.Contains(err.Error(), b.paths.SandboxLogs("a")) {
		t.Errorf("it says %v", err)
	}
}

func TestCountsFollowTheDisk(t *testing.T) {
	t0 := time.Unix(1000, 0)
	free := freeSpace{bytes: 10 << 30, files: 1 << 20}
	before := pace{last: t0, took: 10 * time.Millisecond, free: free}
	filling := freeSpace{bytes: free.bytes - 200<<20, files: free.files}
	for name, c := range map[string]struct {
		pace  pace
		after time.Duration
		free  freeSpace
		want  bool
	}{
		"the first":                     {pace{}, 0, free, true},
		"nothing happens":               {before, 9 * time.Second, free, false},
		"after a while":                 {before, 10 * time.Second, free, true},
		"bytes are written":             {before, time.Second, filling, true},
		"files are made":                {before, time.Second, freeSpace{bytes: free.bytes, files: free.files - 5000}, true},
		"space is freed":                {before, time.Second, freeSpace{bytes: free.bytes * 2, files: free.files}, false},
		"a slow count, nothing happens": {pace{last: t0, took: time.Second, free: free}, 999 * time.Second, free, false},
		"a slow count, after a while":   {pace{last: t0, took: time.Second, free: free}, 1000 * time.Second, free, true},
		"a slow count, the disk fills":  {pace{last: t0, took: time.Second, free: free}, 10 * time.Second, filling, true},
		"too soon after a slow count":   {pace{last: t0, took: time.Second, free: free}, 5 * time.Second, filling, false},
		"the clock was set back":        {before, -time.Hour, free, true},
	} {
		if got := c.pace.due(t0.Add(c.after), c.free); got != c.want {
			t.Errorf("%s: due is %v", name, got)
		}
	}
}

func TestARemovalEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	b.write("stranger", 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Clear(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled removal gives %v", err)
	}
}

// TestTheCheckpointsOfItsAgentsCount: they are outside its folders, but it has made them.
func TestTheCheckpointsOfItsAgentsCount(t *testing.T) {
	b := newBench(t)
	b.write("b.stdout.log", 100<<10)
	saved := func(count int) {
		b.book.agents = nil
		for range count {
			b.book.agents = append(b.book.agents, ledger.Agent{Record: agents.Record{Checkpoints: []*agboxv1.AgentCheckpoint{{Bytes: 200 << 10}, {Bytes: 200 << 10}}}})
		}
	}
	saved(2)
	b.Pass(t.Context())
	if len(b.book.reasons) > 0 {
		t.Errorf("within its limit it was stopped: %v", b.book.reasons)
	}
	saved(3)
	b.Pass(t.Context())
	if got := b.book.reasons["a"]; !strings.Contains(got, "(1 of them in checkpoints)") || !strings.Contains(got, "agbox agent rm") {
		t.Errorf("it was stopped because of %q", got)
	}
	err := b.Tidy(t.Context(), "a")
	if fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_FOLDERS_FULL || !strings.Contains(err.Error(), "checkpoints") {
		t.Errorf("a start gives %v", err)
	}
	saved(1)
	if err := b.Tidy(t.Context(), "a"); err != nil {
		t.Errorf("a start after the removal of agents gives %v", err)
	}
}

func TestAStoppedSandboxIsCountedWhenItIsAskedFor(t *testing.T) {
	b := newBench(t)
	b.Pass(t.Context())
	b.write("more.log", 5000)
	before, ok := b.Known(t.Context(), "a")
	if !ok || before.Files != 1 {
		t.Errorf("while it runs: %+v, %v", before, ok)
	}
	b.book.boxes[0].State = machine.Stopped
	if now, ok := b.Known(t.Context(), "a"); !ok || now.Files != 2 {
		t.Errorf("stopped: %+v, %v", now, ok)
	}
}
