package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/agents"
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
	if n := len(history.Records); n > 22 { // those of the last minute stay
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

// spawn makes an agent in a sandbox, or with an own one.
func (b *box) spawn(id, sandboxID string) {
	b.t.Helper()
	n := ledger.NewAgent{ID: id, SandboxID: sandboxID, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}
	if sandboxID == "" {
		n.SandboxID, n.Own = "agent-"+id, &agboxv1.CreateSpec{Image: "img"}
	}
	_, err := b.book.SpawnAgent(b.t.Context(), n)
	b.must(err)
}

func (b *box) endAgent(id string) {
	b.t.Helper()
	a, _ := b.book.Agent(id)
	_, err := b.book.EmitAgent(b.t.Context(), a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agents.Completed, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{}},
	})
	b.must(err)
}

// agents lists the agents that are not deleted.
func (b *box) agents() string {
	var ids []string
	for _, a := range b.book.Agents(nil) {
		ids = append(ids, a.ID)
	}
	return strings.Join(ids, " ")
}

// stored lists the events of agents that are kept.
func (b *box) stored() string {
	b.t.Helper()
	c, err := b.book.OpenAgentEvents(b.t.Context(), "", 0)
	b.must(err)
	events, _, err := b.book.NextAgentEvents(b.t.Context(), c, 1000)
	b.must(err)
	var list []string
	for _, ev := range events {
		list = append(list, fmt.Sprint(ev.GetPosition(), "=", ev.GetEventId()))
	}
	return strings.Join(list, " ")
}

func TestOfManyEndedAgentsTheNewestAreKept(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	for _, id := range []string{"1", "2", "3", "4", "living"} {
		b.spawn(id, "s")
	}
	for _, id := range []string{"4", "1", "3"} { // not in the order of their begin
		b.endAgent(id)
		b.pass(time.Second)
	}
	b.want("agents right after the ends", b.agents(), "1 2 3 4 living")
	b.pass(time.Minute)
	b.want("agents after a minute", b.agents(), "1 2 3 living")
	b.endAgent("2")
	b.pass(time.Minute)
	b.want("agents after one more", b.agents(), "2 3 living")
}

func TestAnAgentIsRemovedSomeTimeAfterItsEnd(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("ended", "s")
	b.spawn("living", "s")
	b.endAgent("ended")
	b.pass(59 * time.Minute)
	b.want("agents before the time", b.agents(), "ended living")
	slow, err := b.book.OpenAgentEvents(t.Context(), "", 1)
	b.must(err)
	b.pass(time.Minute)
	b.want("agents", b.agents(), "living")
	b.want("events after the deletion", b.stored(), "1=ended/1 2=living/1 3=ended/2 4=ended/3")
	b.restart()
	b.pass(0)
	b.want("events in the end", b.stored(), "2=living/1")
	b.want("agents in the end", b.agents(), "living")
	_, err = b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: "ended", SandboxID: "s", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if !errdefs.IsAlreadyExists(err) {
		t.Errorf("the id of a removed agent can be used again: %v", err)
	}
	for after, gap := range []bool{false, true, true, true, false} {
		_, err := b.book.OpenAgentEvents(t.Context(), "", uint64(after))
		if errdefs.IsOutOfRange(err) != gap {
			t.Errorf("a watch after position %d: %v", after, err)
		}
	}
	if _, err := b.book.OpenAgentEvents(t.Context(), "living", 2); err != nil {
		t.Errorf("a watch of one agent: %v", err)
	}
	if _, _, err := b.book.NextAgentEvents(t.Context(), slow, 100); !errdefs.IsOutOfRange(err) {
		t.Errorf("a watch under way that was overtaken: %v", err)
	}
	b.endAgent("living")
	b.want("events after the removal", b.stored(), "2=living/1 5=living/2")
}

func TestAnAgentThatAUserRemovedIsKeptAsLong(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("a", "s")
	b.endAgent("a")
	checkpoint := filepath.Join(b.install.AgentCheckpoints("a"), "1.json")
	b.must(os.MkdirAll(filepath.Dir(checkpoint), 0o700))
	b.must(os.WriteFile(checkpoint, nil, 0o600))
	b.pass(0)
	if _, err := os.Stat(checkpoint); err != nil {
		t.Error(err)
	}
	_, err := b.book.DeleteAgent(t.Context(), "a")
	b.must(err)
	b.pass(59 * time.Minute)
	if _, err := os.Stat(checkpoint); !os.IsNotExist(err) {
		t.Errorf("the checkpoint of a removed agent: %v", err)
	}
	b.want("events before the time", b.stored(), "1=a/1 2=a/2 3=a/3")
	b.pass(time.Minute)
	b.want("events", b.stored(), "")
}

func TestAnAgentStaysUntilItsSandboxIsToGo(t *testing.T) {
	b := newBox(t)
	b.spawn("a", "")
	b.endAgent("a")
	b.pass(2 * time.Hour)
	b.want("agents while the sandbox stays", b.agents(), "a")
	_, err := b.book.RequestDelete(t.Context(), "agent-a")
	b.must(err)
	b.pass(0)
	b.want("agents after the sandbox", b.agents(), "")
}

// TestARemovedAgentIsKnownWhileThereIsOneThatItSpawned: a wait for a tree finds it by that.
func TestARemovedAgentIsKnownWhileThereIsOneThatItSpawned(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	parent := ""
	for _, id := range []string{"root", "middle", "leaf"} {
		_, err := b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, SandboxID: "s", Parent: parent, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
		b.must(err)
		parent = id
	}
	b.endAgent("middle")
	leaf, _ := b.book.Agent("leaf")
	_, err := b.book.EmitAgent(t.Context(), leaf.Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: "root", From: "middle"}},
	})
	b.must(err)
	for range 3 {
		b.pass(time.Hour)
	}
	b.want("agents", b.agents(), "root leaf")
	b.restart()
	b.pass(time.Hour)
	wait := b.book.WaitForEnd("root", true)
	defer wait.Close()
	b.endAgent("root")
	if _, more := wait.Take(); !more {
		t.Error("a wait for the tree does not find the agent below the removed one")
	}
	b.endAgent("leaf")
	for range 3 {
		b.pass(time.Hour)
	}
	b.want("agents in the end", b.agents(), "")
	b.want("events in the end", b.stored(), "")
}

// TestTheEventsOfALivingAgentAreBounded: an agent can live for months.
func TestTheEventsOfALivingAgentAreBounded(t *testing.T) {
	b := newBox(t)
	b.keeper.rules.MaxEvents = 40
	b.ready("s")
	b.spawn("long", "s")
	b.spawn("short", "s")
	live := func(times int) {
		for range times {
			_, err := b.book.OpenStream(t.Context(), "long", "news")
			b.must(err)
			_, err = b.book.CloseStream(t.Context(), "long", "news")
			b.must(err)
		}
	}
	events := func() int { return len(strings.Fields(b.stored())) - 1 }
	live(100)
	_, err := b.book.OpenStream(t.Context(), "long", "stays")
	b.must(err)
	open, err := b.book.OpenAgentEvents(t.Context(), "long", 5)
	b.must(err)
	b.pass(30 * time.Second)
	if got := events(); got != 202 {
		t.Errorf("after half a minute %d events are left", got)
	}
	was, _ := b.book.Agent("long")
	b.pass(time.Minute)
	// The first event, and the newest.
	if got := events(); got != 5 {
		t.Errorf("%d events are left: %s", got, b.stored())
	}
	live(17)
	b.pass(2 * time.Minute)
	if got := events(); got != 39 {
		t.Errorf("%d events are left of fewer than the maximum", got)
	}
	live(1)
	b.pass(2 * time.Minute)
	if got := events(); got > 10 {
		t.Errorf("%d events are left in the end: %s", got, b.stored())
	}
	for of, want := range map[string]bool{"": true, "long": true, "short": false} {
		if _, err := b.book.OpenAgentEvents(t.Context(), of, 5); errdefs.IsOutOfRange(err) != want {
			t.Errorf("a watch of %q after position 5: %v", of, err)
		}
		if _, err := b.book.OpenAgentEvents(t.Context(), of, 0); err != nil {
			t.Errorf("a watch of %q from the beginning: %v", of, err)
		}
	}
	if _, _, err := b.book.NextAgentEvents(t.Context(), open, 100); !errdefs.IsOutOfRange(err) {
		t.Errorf("a watch under way that was overtaken: %v", err)
	}
	now, _ := b.book.Agent("long")
	b.restart()
	again, _ := b.book.Agent("long")
	if !reflect.DeepEqual(now.Record, again.Record) || !slices.Equal(was.Streams, again.Streams) {
		t.Errorf("before a restart the agent is %+v, afterwards %+v", now.Record, again.Record)
	}
}

// TestADeletedAgentWithADamagedEventIsDropped: the other events tell that it is deleted.
func TestADeletedAgentWithADamagedEventIsDropped(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("a", "s")
	_, err := b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: "b", Name: "to-be-damaged", SandboxID: "s", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	b.must(err)
	b.endAgent("b")
	_, err = b.book.DeleteAgent(t.Context(), "b")
	b.must(err)
	b.end()
	raw, err := os.ReadFile(b.install.Database())
	b.must(err)
	const name = "\x0dto-be-damaged" // with its length
	if !bytes.Contains(raw, []byte(name)) {
		t.Fatal("the event is not in the database")
	}
	b.must(os.WriteFile(b.install.Database(), bytes.ReplaceAll(raw, []byte(name), []byte("\x7fto-be-damaged")), 0o600))
	b.open()
	b.pass(59 * time.Minute)
	b.want("events before the time", b.stored(), "1=a/1 3=b/2 4=b/3")
	b.pass(time.Minute)
	b.want("events", b.stored(), "1=a/1")
	if _, err := b.book.PastAgent(t.Context(), "b"); !errdefs.IsNotFound(err) {
		t.Errorf("the agent in the end: %v", err)
	}
}
