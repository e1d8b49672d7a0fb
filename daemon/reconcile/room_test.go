package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// accept records an exec.
func (l *life) accept(id, exec string) {
	l.t.Helper()
	_, err := l.ledger.AcceptExec(l.t.Context(), &agboxv1.CreateExecRequest{SandboxId: id, ExecId: exec, Command: []string{"x"}}, "boot")
	if err != nil {
		l.t.Fatal(err)
	}
}

// put writes a file into the log folder of a sandbox.
func (l *life) put(id, name string, size int) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.loop.paths.SandboxLogs(id), name), make([]byte, size), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// logFiles returns what is in the log folder of a sandbox.
func (l *life) logFiles(id string) []string {
	l.t.Helper()
	entries, err := os.ReadDir(l.loop.paths.SandboxLogs(id))
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestASandboxThatFillsItsFoldersIsStoppedAndStartsClean(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	if boot := l.boot("a"); boot.GetMaxFolderBytes() != 257<<20 || boot.GetMaxFolderFiles() != 20 {
		t.Errorf("the boot configuration has %v", boot)
	}
	l.put("a", "few", 10)
	l.room.Pass(t.Context())
	for n := range 30 {
		l.put("a", string(rune('a'+n)), 0)
	}
	l.room.Pass(t.Context())
	r := l.await("a", machine.Stopped)
	if r.StopReason != agboxv1.ErrorReason_HOST_FOLDERS_FULL.String() || r.StopMessage == "" {
		t.Errorf("it was stopped for %q: %s", r.StopReason, r.StopMessage)
	}
	if left := l.logFiles("a"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	l = l.next() // the reason is in the events
	if sb, _ := l.ledger.Sandbox("a"); sb.StopReason != r.StopReason || sb.StopMessage != r.StopMessage {
		t.Errorf("the next daemon knows %q: %s", sb.StopReason, sb.StopMessage)
	}
	l.put("a", "one more", 10)
	l.want(l.ledger.RequestResume, "a")
	if r := l.await("a", machine.Ready); r.StopReason != "" || r.StopMessage != "" {
		t.Errorf("after the start it still has %q: %s", r.StopReason, r.StopMessage)
	}
	if left := l.logFiles("a"); !slices.Equal(left, []string{"one more"}) {
		t.Errorf("a start removed what is within the limit; left are %q", left)
	}
}

func TestAStartRemovesWhatIsTooMuch(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.stop("a")
	l.await("a", machine.Stopped)
	for n := range 30 {
		l.put("a", string(rune('a'+n)), 0)
	}
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	if left := l.logFiles("a"); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

func TestARemovalLeavesOnlyTheLogsOfCommands(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "e")
	for _, name := range []string{"e.stdout.log", "e.status", "other.stdout.log", "stranger"} {
		l.put("a", name, 10)
	}
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	if left := l.logFiles("a"); !slices.Equal(left, []string{"e.status", "e.stdout.log"}) {
		t.Errorf("left are %q", left)
	}
}

func TestARemovalEndsAlsoIfTheLogsCannotBeRemoved(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.accept("a", "e")
	folder, elsewhere := l.loop.paths.SandboxLogs("a"), t.TempDir()
	if err := errors.Join(os.RemoveAll(folder), os.Symlink(elsewhere, folder)); err != nil {
		t.Fatal(err)
	}
	l.put("a", "e.stdout.log", 10)
	l.want(func(ctx context.Context, id string) (ledger.Sandbox, error) {
		return l.ledger.RequestDeletion(ctx, id, ledger.Deletion{RemoveLogs: true})
	}, "a")
	l.await("a", machine.Deleted)
	if left := l.logFiles("a"); !slices.Equal(left, []string{"e.stdout.log"}) {
		t.Errorf("behind the link are %q", left)
	}
}
