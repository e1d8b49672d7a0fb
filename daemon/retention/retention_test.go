package retention

import (
	"bytes"
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

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// box is an install whose clock the test advances.
type box struct {
	t       *testing.T
	install paths.Install
	now     time.Time
	book    *ledger.Ledger
	keeper  *Keeper
	log     bytes.Buffer
	end     func()
}

var rules = machine.Retention{KeepDeleted: 2 * time.Hour, KeepExecs: time.Hour, KeepAgents: time.Hour, MaxAgents: 2, MaxExecs: 1000, MaxEvents: 10000}

func newBox(t *testing.T) *box {
	dir := t.TempDir()
	b := &box{t: t, install: paths.Install{Data: dir, Config: dir, Run: dir}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	b.open()
	t.Cleanup(func() { b.end() })
	return b
}

func (b *box) open() {
	b.t.Helper()
	db, err := store.Open(context.Background(), store.Options{Path: b.install.Database(), Sentinel: b.install.Sentinel()})
	if err != nil {
		b.t.Fatal(err)
	}
	b.end = func() { _ = db.Close() }
	clock := func() time.Time { return b.now }
	if b.book, err = ledger.Open(b.t.Context(), db, clock, slog.New(slog.DiscardHandler)); err != nil {
		b.t.Fatal(err)
	}
	b.keeper = New(Options{
		Ledger: b.book, Logs: Files{b.install}, Rules: rules, Now: clock,
		Log: slog.New(slog.NewTextHandler(&b.log, nil)),
	})
}

// restart simulates a crash and the start of a new daemon.
func (b *box) restart() {
	b.t.Helper()
	b.end()
	b.open()
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) emit(id string, typ agboxv1.EventType) {
	b.t.Helper()
	sb, _ := b.book.Sandbox(id)
	_, err := b.book.Emit(b.t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: typ})
	b.must(err)
}

func (b *box) ready(id string) {
	b.t.Helper()
	_, err := b.book.Create(b.t.Context(), id, &agboxv1.CreateSpec{Image: "img"})
	b.must(err)
	b.emit(id, agboxv1.EventType_SANDBOX_READY)
}

func (b *box) remove(id string) {
	b.t.Helper()
	_, err := b.book.RequestDelete(b.t.Context(), id)
	b.must(err)
	b.emit(id, agboxv1.EventType_SANDBOX_DELETED)
}

func (b *box) start(id, execID string) {
	b.t.Helper()
	_, err := b.book.AcceptExec(b.t.Context(), &agboxv1.CreateExecRequest{SandboxId: id, ExecId: execID, Command: []string{"true"}}, "boot")
	b.must(err)
	b.must(os.MkdirAll(b.install.SandboxLogs(id), 0o700))
	for _, name := range []string{logs.StdoutName(execID), logs.StderrName(execID), logs.StatusName(execID)} {
		b.must(os.WriteFile(filepath.Join(b.install.SandboxLogs(id), name), []byte("x"), 0o600))
	}
}

func (b *box) finish(id, execID string) {
	b.t.Helper()
	b.must(b.book.EndExec(b.t.Context(), id, &agboxv1.ExecEventDetails{ExecId: execID, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}))
}

// run starts execs and ends them at the same time.
func (b *box) run(id string, execIDs ...string) {
	b.t.Helper()
	for _, execID := range execIDs {
		b.start(id, execID)
		b.finish(id, execID)
	}
}

// files lists the execs that have logs.
func (b *box) files(id string) string {
	b.t.Helper()
	entries, err := os.ReadDir(b.install.SandboxLogs(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		names = append(names, name)
	}
	return strings.Join(slices.Compact(names), " ")
}

// execs lists the execs that have a record.
func (b *box) execs(id string) string {
	b.t.Helper()
	page, err := b.book.Execs(b.t.Context(), id, "", 100)
	b.must(err)
	var ids []string
	for _, e := range page {
		ids = append(ids, e.GetExecId())
	}
	return strings.Join(ids, " ")
}

func (b *box) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (b *box) pass(after time.Duration) {
	b.t.Helper()
	b.now = b.now.Add(after)
	b.keeper.Pass(b.t.Context())
}

// TestFailedStartsTakeNoExecOfTheUser: a sandbox that cannot be started is asked for again and again.
func TestFailedStartsTakeNoExecOfTheUser(t *testing.T) {
	b := newBox(t)
	b.keeper.rules.KeepExecs, b.keeper.rules.MaxEvents = 24*time.Hour, 20
	b.ready("a")
	b.run("a", "1", "2", "3")
	for range 30 {
		b.emit("a", agboxv1.EventType_SANDBOX_FAILED)
		_, err := b.book.RequestResume(t.Context(), "a")
		b.must(err)
		b.pass(time.Minute)
	}
	b.want("execs", b.execs("a"), "1 2 3")
	b.want("files", b.files("a"), "1 2 3")
	history, err := b.book.Events(t.Context(), "a", 0, 1000)
	b.must(err)
	if n := len(history.Events); n > 22 { // those of the last minute stay
		t.Errorf("%d events are kept", n)
	}
	before, _ := b.book.Sandbox("a")
	b.restart()
	if after, _ := b.book.Sandbox("a"); !after.FailedSince.Equal(before.FailedSince) || after.State != before.State {
		t.Errorf("after a restart it is %+v, before %+v", after.Record, before.Record)
	}
}

func TestExpiredExecsLoseRecordEventsAndLogs(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	b.start("a", "busy")
	b.run("a", "old1", "old2")
	b.now = b.now.Add(30 * time.Minute)
	b.run("a", "young")
	b.pass(30*time.Minute - time.Second)
	b.want("before", b.execs("a"), "busy old1 old2 young")
	b.pass(time.Second)
	b.want("records", b.execs("a"), "busy young")
	b.want("logs", b.files("a"), "busy young")
	if _, err := b.book.FindExec(t.Context(), "old1"); fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_NOT_FOUND {
		t.Errorf("a forgotten exec: %v", err)
	}
	_, err := b.book.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "old1", Command: []string{"true"}}, "boot")
	if fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS {
		t.Errorf("its id again: %v", err)
	}
	b.restart()
	sb, _ := b.book.Sandbox("a")
	if sb.State != machine.Ready || len(sb.Execs) != 1 || !sb.LastUse.Equal(b.now.Add(-30*time.Minute)) {
		t.Errorf("after a restart: %+v", sb.Record)
	}
	if b.log.Len() > 0 {
		t.Errorf("the log says %s", &b.log)
	}
}

func TestTheLastUseOutlivesTheExecAndARestart(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	b.now = b.now.Add(time.Hour)
	b.run("a", "x")
	used := b.now
	b.pass(3 * time.Hour)
	b.pass(3 * time.Hour)
	b.want("records", b.execs("a")+b.files("a"), "")
	b.restart()
	if sb, _ := b.book.Sandbox("a"); !sb.LastUse.Equal(used) {
		t.Errorf("the last use was at %s, want %s", sb.LastUse, used)
	}
}

func TestManyExecsAreRemovedInPages(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	for i := range 3 * page {
		b.run("a", "x"+time.Duration(i).String())
	}
	b.pass(time.Hour)
	b.want("records and logs", b.execs("a")+b.files("a"), "")
}

func TestADeletedSandboxIsListedUntilItExpires(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	b.run("a", "x")
	b.remove("a")
	b.ready("other")
	b.pass(2*time.Hour - time.Second)
	if past, err := b.book.PastIDs(t.Context()); err != nil || !slices.Equal(past, []string{"a"}) {
		t.Fatalf("past sandboxes %v, %v", past, err)
	}
	b.want("logs of a deleted sandbox", b.files("a"), "x")
	b.want("execs of a deleted sandbox", b.execs("a"), "x")
	b.pass(time.Second)
	if past, err := b.book.PastIDs(t.Context()); err != nil || len(past) > 0 {
		t.Errorf("past sandboxes %v, %v", past, err)
	}
	if _, err := os.Stat(b.install.SandboxLogs("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its log folder: %v", err)
	}
	if _, err := b.book.FindSandbox(t.Context(), "a"); !errdefs.IsNotFound(err) {
		t.Errorf("it is found: %v", err)
	}
	if _, err := b.book.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: "img"}); fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS {
		t.Errorf("its id again: %v", err)
	}
	if _, living := b.book.Sandbox("other"); !living {
		t.Error("the other is gone")
	}
}

// crashing simulates a crash of the daemon right after it has removed logs.
type crashing struct {
	Logs
	crash context.CancelFunc
}

func (c crashing) RemoveExec(ctx context.Context, sandboxID, execID string) error {
	defer c.crash()
	return c.Logs.RemoveExec(ctx, sandboxID, execID)
}

func (c crashing) RemoveSandbox(ctx context.Context, sandboxID string) error {
	defer c.crash()
	return c.Logs.RemoveSandbox(ctx, sandboxID)
}

func TestARemovalInterruptedAfterTheLogsIsRepeated(t *testing.T) {
	for name, deleted := range map[string]bool{"of an exec": false, "of a deleted sandbox": true} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.ready("a")
			b.run("a", "x")
			if deleted {
				b.remove("a")
			}
			b.now = b.now.Add(2 * time.Hour)
			ctx, crash := context.WithCancel(t.Context())
			b.keeper.logs = crashing{b.keeper.logs, crash}
			b.keeper.Pass(ctx)
			b.want("logs after the crash", b.files("a"), "")
			b.want("records after the crash", b.execs("a"), "x")
			b.restart()
			b.pass(0)
			b.want("records in the end", b.execs("a"), "")
			if past, err := b.book.PastIDs(t.Context()); err != nil || len(past) > 0 {
				t.Errorf("past sandboxes %v, %v", past, err)
			}
			if b.log.Len() > 0 && !deleted {
				t.Errorf("the log says %s", &b.log)
			}
		})
	}
}

func TestASandboxThatCannotBeTrimmedDoesNotBlockOthers(t *testing.T) {
	b := newBox(t)
	for _, id := range []string{"a", "b", "c"} {
		b.ready(id)
		b.run(id, "x"+id, "y"+id)
	}
	b.keeper.logs = stubborn{b.keeper.logs, "xb"}
	b.pass(time.Hour)
	b.pass(time.Minute)
	b.want("a", b.execs("a"), "")
	b.want("b", b.execs("b"), "xb")
	b.want("c", b.execs("c"), "")
	if n := strings.Count(b.log.String(), "cannot be removed"); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, &b.log)
	}
	b.keeper.logs = Files{b.install}
	b.pass(time.Minute)
	b.want("b at last", b.execs("b"), "")
}

// TestAClockThatWasAheadDelaysNoRemoval: neither that of what ended later, nor that of what could
// not be removed meanwhile.
func TestAClockThatWasAheadDelaysNoRemoval(t *testing.T) {
	b := newBox(t)
	right := b.now
	b.ready("a")
	b.run("a", "xa")
	b.ready("b")
	b.run("b", "xb")
	b.keeper.logs = stubborn{b.keeper.logs, "xb"}
	b.now = right.Add(-30*time.Minute + 365*24*time.Hour)
	b.pass(0)
	b.want("a while the clock is ahead", b.execs("a"), "")
	b.want("b while the clock is ahead", b.execs("b"), "xb")
	b.keeper.logs = Files{b.install}
	b.now = right
	b.run("a", "ya")
	b.pass(time.Minute)
	b.want("b before the time", b.execs("b"), "xb")
	b.pass(59 * time.Minute)
	b.want("a", b.execs("a"), "")
	b.want("b", b.execs("b"), "")
}

// stubborn cannot remove the logs of one exec.
type stubborn struct {
	Logs
	execID string
}

func (s stubborn) RemoveExec(ctx context.Context, sandboxID, execID string) error {
	if execID == s.execID {
		return errors.New("will not go")
	}
	return s.Logs.RemoveExec(ctx, sandboxID, execID)
}

func TestRunPassesByItself(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	b.run("a", "x")
	b.now = b.now.Add(time.Hour)
	b.keeper.rules.KeepExecs = time.Millisecond // makes passes frequent
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	removed := make(chan struct{})
	b.keeper.logs = removalSignal{b.keeper.logs, removed}
	done := make(chan struct{})
	go func() { b.keeper.Run(ctx); close(done) }()
	select {
	case <-removed:
	case <-ctx.Done():
		t.Error("nothing was removed")
	}
	cancel()
	<-done
}

// removalSignal closes removed at the first removal.
type removalSignal struct {
	Logs
	removed chan struct{}
}

func (s removalSignal) RemoveExec(ctx context.Context, sandboxID, execID string) error {
	close(s.removed)
	return s.Logs.RemoveExec(ctx, sandboxID, execID)
}

// write makes the files of an exec with the suffixes.
func (b *box) write(id, execID, content string, names ...string) {
	b.t.Helper()
	b.must(os.MkdirAll(b.install.SandboxLogs(id), 0o700))
	for _, name := range names {
		b.must(os.WriteFile(filepath.Join(b.install.SandboxLogs(id), execID+name), []byte(content), 0o600))
	}
}

// names lists the files of a sandbox.
func (b *box) names(id string) string {
	b.t.Helper()
	entries, err := os.ReadDir(b.install.SandboxLogs(id))
	b.must(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestOfADeletedSandboxOnlyOutputStays: the rest of what is known of its execs is in the
// database. The journal of an agent stays as long as the agent has a record.
func TestOfADeletedSandboxOnlyOutputStays(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	b.spawn("g", "a")
	b.endAgent("g")
	b.write("a", "said", "x", ".stdout.log", ".index", ".status")
	b.write("a", "said", "", ".stderr.log")
	b.write("a", "silent", "", ".stdout.log", ".stderr.log", ".index")
	b.write("a", "silent", "x", ".status", ".beat", ".results")
	b.write("a", "agent-g-1", "", ".stdout.log", ".stderr.log", ".index")
	b.write("a", "agent-g-1", "x", ".status", ".journal.jsonl", ".results", ".ckpt-0.json", ".ckpt-5.json")
	b.write("a", "agent-none-1", "x", ".status", ".journal.jsonl", ".results")
	all := b.names("a")
	b.pass(0)
	b.want("files of a living sandbox", b.names("a"), all)
	b.remove("a")
	b.pass(0)
	said, journal := "said.index said.stderr.log said.stdout.log", ""
	for _, name := range strings.Fields(all) {
		if strings.HasPrefix(name, "agent-g-1") {
			journal += name + " "
		}
	}
	b.want("files while the agent has a record", b.names("a"), journal+said)
	b.restart()
	b.pass(0)
	b.want("files after a restart", b.names("a"), journal+said)
	_, err := b.book.DeleteAgent(t.Context(), "g")
	b.must(err)
	b.pass(0)
	b.want("files in the end", b.names("a"), said)
}

// TestASlimmingInterruptedAnywhereIsFinished: the status of an exec goes last, and tells the
// next pass what is left.
func TestASlimmingInterruptedAnywhereIsFinished(t *testing.T) {
	for left := range 4 {
		b := newBox(t)
		b.ready("a")
		b.remove("a")
		b.write("a", "x", "x", append([]string{".beat", ".journal.jsonl", ".stdout.log"}[:left], ".status")...)
		b.pass(0)
		want := ""
		if left == 3 {
			want = "x.stdout.log"
		}
		b.want(fmt.Sprintf("what stays of the status and %d files", left), b.names("a"), want)
	}
}

// TestOfATreeOnlyTheNewestDeletedSandboxesAreKept: a program that spawns agents with sandboxes in
// a loop fills no disk with their logs, also across a restart; what users have made stays.
func TestOfATreeOnlyTheNewestDeletedSandboxesAreKept(t *testing.T) {
	b := newBox(t)
	gone := func(id, tree string) {
		t.Helper()
		spec := &agboxv1.CreateSpec{Image: "x"}
		if tree != "" {
			spec.Derived = &agboxv1.DerivedSpec{Parent: tree, Tree: tree}
		}
		_, err := b.book.Create(t.Context(), id, spec)
		b.must(err)
		b.must(os.MkdirAll(b.install.SandboxLogs(id), 0o700))
		_, err = b.book.RequestDelete(t.Context(), id)
		b.must(err)
		sb, _ := b.book.Sandbox(id)
		_, err = b.book.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED})
		b.must(err)
		b.now = b.now.Add(time.Second)
	}
	kept := func() (ids []string) {
		t.Helper()
		b.keeper.Pass(t.Context())
		ids, err := b.book.PastIDs(t.Context())
		b.must(err)
		for _, id := range ids {
			if _, err := os.Stat(b.install.SandboxLogs(id)); err != nil {
				t.Errorf("the logs of %s: %v", id, err)
			}
		}
		slices.Sort(ids)
		return ids
	}
	gone("user", "")
	gone("other", "tree-2")
	for i := range ledger.KeptOfTree + 2 {
		gone(string(rune('z'-i)), "tree-1") // by its id, the newest would be the first
	}
	want := []string{"other", "q", "r", "s", "t", "u", "v", "w", "x", "user"}
	slices.Sort(want)
	if got := kept(); !slices.Equal(got, want) {
		t.Errorf("kept are %v; want %v", got, want)
	}
	b.restart()
	gone("late", "tree-1")
	want = append(slices.DeleteFunc(want, func(id string) bool { return id == "x" }), "late")
	slices.Sort(want)
	if got := kept(); !slices.Equal(got, want) {
		t.Errorf("after a restart, kept are %v; want %v", got, want)
	}
	b.now = b.now.Add(rules.KeepDeleted)
	if got := kept(); len(got) != 0 {
		t.Errorf("after the time, kept are %v", got)
	}
}
