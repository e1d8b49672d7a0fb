package incarnations

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// bench is a Runner with an agent "x" in sandbox "a", whose incarnation has begun.
type bench struct {
	*guesttest.Bench
	*Runner
	t    testing.TB
	link *links.Link
	// enqueued counts the rounds that were asked for.
	enqueued int
	journal  *logs.Journal
	rows     uint64
}

func newBench(t testing.TB, spec *agboxv1.AgentSpec) *bench {
	t.Helper()
	b := &bench{Bench: guesttest.New(t), t: t, link: &links.Link{SandboxID: "a"}}
	b.restart()
	spec.Command = []string{"true"}
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "x", SandboxID: "a", Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	b.emit(a, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: "e", SandboxId: "a", Attempt: 1}},
	})
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	if b.journal, err = dir.CreateJournal("e", journal.MaxJournal, nil, logs.KeepOwner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.journal.Close() })
	return b
}

// restart makes a Runner that knows nothing yet, as in a new daemon.
func (b *bench) restart() {
	b.Runner = New(nil, nil, b.Ledger, b.Install, func(string) { b.enqueued++ }, time.Now, b.Log)
	b.Ledger.NotifyAgents(func(string) { b.enqueued++ })
}

func (b *bench) agent() ledger.Agent {
	a, _ := b.Ledger.Agent("x")
	return a
}

func (b *bench) emit(a ledger.Agent, ev *agboxv1.AgentEvent) {
	b.t.Helper()
	if _, err := b.Ledger.EmitAgent(b.t.Context(), a.Record, ev); err != nil {
		b.t.Fatal(err)
	}
}

// write appends rows to the journal and tells about them.
func (b *bench) write(rows ...journal.Row) {
	b.t.Helper()
	for _, row := range rows {
		line, err := journal.Encode(row)
		if err != nil {
			b.t.Fatal(err)
		}
		b.writeLine(string(line))
	}
	b.tell()
}

func (b *bench) writeLine(line string) {
	b.t.Helper()
	b.rows++
	if err := b.journal.Append([]byte(line), false); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) tell() { b.Told(b.link, &guestv1.IncarnationNews{ExecId: "e", Rows: b.rows}) }

// see returns what is known of the incarnation.
func (b *bench) see() (seen agents.Seen) {
	b.See(b.agent(), &seen)
	return seen
}

// consume does the step as often as it is due.
func (b *bench) consume() {
	b.t.Helper()
	for range 3 {
		if !b.see().Unread {
			return
		}
		if err := b.Consume(b.t.Context(), b.agent()); err != nil {
			b.t.Fatal(err)
		}
	}
	b.t.Fatal("the same news are consumed again and again")
}

// history has the events of the agent after its beginning.
func (b *bench) history() (words []string) {
	b.t.Helper()
	c, err := b.Ledger.OpenAgentEvents(b.t.Context(), "x", 0)
	if err != nil {
		b.t.Fatal(err)
	}
	events, _, err := b.Ledger.NextAgentEvents(b.t.Context(), c, 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, ev := range events[2:] {
		word := strings.TrimPrefix(ev.GetType().String(), "AGENT_")
		if ev.GetType() == agboxv1.AgentEventType_AGENT_PHASE || ev.GetType() == agboxv1.AgentEventType_AGENT_RESUMED {
			word += " " + strings.TrimPrefix(ev.GetState().String(), "AGENT_STATE_")
		}
		words = append(words, word)
	}
	return words
}

func (b *bench) want(what string, words ...string) {
	b.t.Helper()
	if got := b.history(); !slices.Equal(got, words) {
		b.t.Errorf("%s: %v; want %v", what, got, words)
	}
}

func used(tokens uint64) journal.Row {
	return journal.Row{Op: journal.Usage, Used: &journal.Used{InputTokens: tokens}}
}

func TestReportsAreConsumedOnce(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.write(journal.Row{Op: journal.Hello}, used(5), journal.Row{Op: journal.Step, Steps: 2})
	b.consume()
	b.want("the first rows", "PROGRESS")
	b.write(journal.Row{Op: journal.Beat}, used(7), journal.Row{Op: journal.Say, Text: "hi"})
	b.consume()
	b.want("totals replace totals", "PROGRESS")
	b.write(journal.Row{Op: journal.Beat})
	sequence := b.agent().LastSequence
	b.consume()
	b.restart() // before anything is known
	if seen := b.see(); !seen.Unknown || seen.Unread {
		t.Errorf("a new daemon sees %+v", seen)
	}
	b.tell()
	b.consume()
	a := b.agent()
	if p := a.Progress; a.LastSequence != sequence || p.GetTotal().GetInputTokens() != 7 || p.GetSteps() != 2 || p.GetLastMessage() != "hi" {
		t.Errorf("after a restart: %v at %d", p, a.LastSequence)
	}
	b.write(journal.Row{Op: journal.Done, Outcome: journal.Fail, Text: "no"})
	b.consume()
	b.want("the outcome", "PROGRESS", "DONE_REPORTED")
	if done := b.agent().Done; done.GetOutcome() != agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL || done.GetMessage() != "no" {
		t.Errorf("the outcome is %v", done)
	}
}

// TestACrashBetweenCommitAndMemory repeats a step whose transaction was committed.
func TestACrashBetweenCommitAndMemory(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.write(used(5), journal.Row{Op: journal.Phase, State: journal.Verifying})
	a := b.agent()
	found := b.reports(a)
	for range 2 {
		if _, err := b.Ledger.RecordReports(t.Context(), "x", ledger.Reports{Events: found.events}); err != nil {
			t.Fatal(err)
		}
	}
	b.want("twice", "PROGRESS") // PENDING may not become VERIFYING
	b.consume()
	b.want("and again", "PROGRESS")
}

func TestUsageOfFormerIncarnationsCounts(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.write(used(5), journal.Row{Op: journal.Step, Steps: 1})
	a := b.agent()
	a, reports, err := b.End(t.Context(), a, &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e", ExitCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.Forget(a, a.Incarnation) // its end is not recorded
	if len(b.desk.known) == 0 {
		t.Error("an incarnation was forgotten whose end is not recorded")
	}
	after, err := b.Ledger.EmitReports(t.Context(), a.Record, reports)
	if err != nil {
		t.Fatal(err)
	}
	b.Forget(after, a.Incarnation)
	if p := b.agent().Progress; p.GetTotal().GetInputTokens() != 5 || p.GetSteps() != 1 {
		t.Errorf("after the end: %v", p)
	}
	if seen := len(b.desk.known); seen != 0 {
		t.Errorf("%d entries stay of an incarnation that has ended", seen)
	}
}

func TestAForgedJournalIsReadOnce(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.writeLine("no row\n")
	b.writeLine(`{"op":"usage","used":{"input_tokens":-1}}` + "\n")
	b.writeLine(strings.Repeat("x", 3*journal.MaxRow) + "\n")
	b.write(used(3))
	b.consume()
	if got := b.agent().Progress.GetTotal().GetInputTokens(); got != 3 {
		t.Errorf("%d tokens", got)
	}
	b.rows += 1000 // more than the file has
	b.tell()
	b.consume()
	b.Told(&links.Link{SandboxID: "other"}, &guestv1.IncarnationNews{ExecId: "e", Rows: 5000})
	if b.see().Unread {
		t.Error("the supervisor of another sandbox was believed")
	}
}

func TestAProgramThatMustReportThatItIsReady(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT})
	b.write(journal.Row{Op: journal.State, State: journal.Hydrating})
	b.consume()
	b.want("it hydrates")
	b.write(journal.Row{Op: journal.State, State: journal.Ready}, journal.Row{Op: journal.Phase, State: journal.Verifying})
	b.consume()
	b.want("it is ready", "PHASE PLANNING", "PHASE EXECUTING", "PHASE VERIFYING")
	b.restart()
	b.write(journal.Row{Op: journal.Phase, State: journal.Planning}, journal.Row{Op: journal.State, State: journal.Executing})
	b.consume()
	b.want("it goes on", "PHASE PLANNING", "PHASE EXECUTING", "PHASE VERIFYING", "PHASE PLANNING")
}

// TestPhasesFollowTheTableOfTheAgent: the journal accepts a phase exactly if the agent's
// table has the event.
func TestPhasesFollowTheTableOfTheAgent(t *testing.T) {
	words := map[agboxv1.AgentState]string{agents.Pending: journal.Pending}
	for word, state := range phaseStates {
		words[state] = word
	}
	for state, word := range words {
		for target, reported := range words {
			r := agents.Record{LastSequence: 1, ID: "x", State: state, Incarnation: &agents.Incarnation{N: 1}}
			legal := agents.Legal(r, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: target, Incarnation: 1})
			_, err := journal.Summary{Phase: word}.Next(journal.Row{Op: journal.Phase, State: reported})
			if legal != (err == nil) {
				t.Errorf("%s after %s: legal is %v, and the journal says %v", reported, word, legal, err)
			}
		}
	}
}

func TestNewsAskForARound(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	for _, row := range []struct {
		what string
		news *guestv1.IncarnationNews
		asks bool
	}{
		{"the first news", &guestv1.IncarnationNews{ExecId: "e"}, true},
		{"the same again", &guestv1.IncarnationNews{ExecId: "e"}, false},
		{"a row", &guestv1.IncarnationNews{ExecId: "e", Rows: 1}, true},
		{"a first beat", &guestv1.IncarnationNews{ExecId: "e", Rows: 1, Armed: true}, true},
		{"another exec", &guestv1.IncarnationNews{ExecId: "f", Rows: 1}, false},
	} {
		before := b.enqueued
		if b.Told(b.link, row.news); (b.enqueued > before) != row.asks {
			t.Errorf("%s: %d rounds were asked for", row.what, b.enqueued-before)
		}
	}
	view := new(agboxv1.Agent)
	b.Show(b.agent(), view)
	if view.GetLiveness() != agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE || view.GetLifecycle() != agboxv1.AgentLifecycle_AGENT_LIFECYCLE_UNSPECIFIED {
		t.Errorf("clients see %v", view)
	}
	b.Silent(b.link)
	if seen := b.see(); !seen.Unknown || seen.Armed {
		t.Errorf("without a link: %+v", seen)
	}
}

// faultyExecs answers every cancel with an error.
type faultyExecs struct {
	Execs
	err    error
	graces []time.Duration
	reaped int
}

func (f *faultyExecs) Cancel(_ context.Context, _, _ string, grace time.Duration) error {
	f.graces = append(f.graces, grace)
	return f.err
}

func (f *faultyExecs) Reap(context.Context, string, string, time.Duration) error {
	f.reaped++
	return f.err
}

func TestKillsAreRepeatable(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	execs := &faultyExecs{err: errdefs.ErrFailedPrecondition} // it has ended
	b.execs = execs
	for _, mode := range []agboxv1.KillMode{agboxv1.KillMode_KILL_MODE_TERMINATE, agboxv1.KillMode_KILL_MODE_NOW} {
		if err := b.Kill(t.Context(), b.agent(), mode); err != nil {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(execs.graces, []time.Duration{5 * time.Second, 0}) {
		t.Errorf("the times between SIGTERM and SIGKILL are %v", execs.graces)
	}
	if err := b.Reap(t.Context(), b.agent()); err != nil || execs.reaped != 1 {
		t.Errorf("a reap: %v", err)
	}
	execs.err = errdefs.ErrUnavailable
	if err := b.Kill(t.Context(), b.agent(), agboxv1.KillMode_KILL_MODE_NOW); !errdefs.IsUnavailable(err) {
		t.Errorf("without a link: %v", err)
	}
}

func TestTheKindOfAnEnd(t *testing.T) {
	reaped := agboxv1.ErrorReason_AGENT_REAPED.String()
	for _, row := range []struct {
		name string
		r    agents.Record
		code string
		want string
	}{
		{"by itself", agents.Record{}, "", "EXITED"},
		{"killed", agents.Record{Kill: &agboxv1.AgentKill{}}, "CANCELLED_BY_REQUEST", "KILLED"},
		{"lost", agents.Record{Kill: &agboxv1.AgentKill{}}, agboxv1.ErrorReason_EXEC_LOST.String(), "LOST"},
		{"sandbox stopped", agents.Record{}, agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC.String(), "DRAINED"},
		{"no room to write down its start", agents.Record{}, agboxv1.ErrorReason_FILE_SYSTEM_FULL.String(), "NEVER_STARTED"},
		{"silent", agents.Record{}, reaped, "ZOMBIE"},
		{"silent, then killed", agents.Record{Kill: &agboxv1.AgentKill{}}, reaped, "ZOMBIE"},
		{"context dead", agents.Record{Context: agboxv1.AgentContext_AGENT_CONTEXT_DEAD}, reaped, "CONTEXT"},
	} {
		got := kindOf(ledger.Agent{Record: row.r}, &agboxv1.ExecStatus{ErrorCode: row.code}, journal.Start(), false)
		if strings.TrimPrefix(got.String(), "INCARNATION_END_KIND_") != row.want {
			t.Errorf("%s: %v; want %s", row.name, got, row.want)
		}
	}
}

func TestTheLastBeat(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.now = func() time.Time { return time.UnixMilli(1_700_000_000_000) }
	if at := b.LastBeat(b.agent()); !at.IsZero() {
		t.Errorf("without a beat: %v", at)
	}
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	file, err := dir.CreateBeat("e", logs.KeepOwner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	for _, row := range []struct {
		record string
		want   int64
	}{
		{`{"at":1699999999000,"state":"EXECUTING"}`, 1_699_999_999_000},
		{`{"at":1699999999000,"state":"FORGED"}`, 0}, {`{"at":1800000000000,"state":"READY"}`, 0}, {"nothing", 0},
	} {
		if err := file.Write([]byte(row.record)); err != nil {
			t.Fatal(err)
		}
		if at := b.LastBeat(b.agent()); row.want == 0 != at.IsZero() || row.want != 0 && at.UnixMilli() != row.want {
			t.Errorf("%s gives %v", row.record, at)
		}
	}
	heap := uint64(120)
	b.Told(b.link, &guestv1.IncarnationNews{ExecId: "e", SilentMs: 500, Armed: true, HeapUsedMb: &heap})
	view := new(agboxv1.Agent)
	if b.Show(b.agent(), view); view.GetHeapUsedMb() != heap {
		t.Errorf("clients see a heap of %d MB", view.GetHeapUsedMb())
	}
	if at := b.LastBeat(b.agent()); at.UnixMilli() != 1_699_999_999_500 {
		t.Errorf("what the supervisor tells is %v", at)
	}
}

// subscribe spawns agents that have a stream open.
func (b *bench) subscribe(stream string, count int) (ids []string) {
	b.t.Helper()
	for i := range count {
		id := fmt.Sprint("listener-", i)
		if _, err := b.Ledger.SpawnAgent(b.t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}); err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.Ledger.OpenStream(b.t.Context(), id, stream); err != nil {
			b.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// deliveries counts the messages that arrive, by how much of the journal is consumed then:
// what one transaction consumes has one number of rows.
func (b *bench) deliveries() map[uint64]int {
	counts := make(map[uint64]int)
	b.Ledger.NotifyAgents(func(string) {
		upto := uint64(0) // the rest, with the end
		if inc := b.agent().Incarnation; inc != nil {
			upto = inc.JournalUpto
		}
		counts[upto]++
	})
	return counts
}

// TestManyMessagesAreDeliveredInPieces: everybody else who writes waits for each transaction.
func TestManyMessagesAreDeliveredInPieces(t *testing.T) {
	for _, ending := range []bool{false, true} {
		t.Run(fmt.Sprintf("ending %v", ending), func(t *testing.T) {
			b := newBench(t, &agboxv1.AgentSpec{})
			const messages, subscribers = 240, 12
			listeners, counts := b.subscribe("news", subscribers), b.deliveries()
			for i := range messages {
				b.write(journal.Row{Op: journal.Usage, Used: &journal.Used{InputTokens: uint64(i)}}, journal.Row{Op: journal.Send, Stream: "news", Text: fmt.Sprint(i)})
			}
			if ending {
				a, last, err := b.End(t.Context(), b.agent(), &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e"})
				if err != nil {
					t.Fatal(err)
				}
				if after, err := b.Ledger.EmitReports(t.Context(), a.Record, last); err != nil || after.Incarnation != nil {
					t.Fatalf("the incarnation has not ended: %v", err)
				}
			} else {
				b.consume()
			}
			for upto, count := range counts {
				if count > maxPiece+subscribers {
					t.Errorf("one transaction, up to row %d, has delivered %d messages", upto, count)
				}
			}
			for _, id := range listeners {
				b.wantOrder(id, messages)
			}
			if got := b.agent().Progress.GetTotal().GetInputTokens(); got != messages-1 {
				t.Errorf("%d tokens are recorded", got)
			}
		})
	}
}

// wantOrder checks that an inbox has the numbers below count, in order.
func (b *bench) wantOrder(id string, count int) {
	b.t.Helper()
	next, after := 0, uint64(0)
	for left := 1; left > 0; {
		list, further, err := b.Ledger.Messages(b.t.Context(), id, after, 1<<20)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, m := range list {
			if m.GetText() != fmt.Sprint(next) {
				b.t.Fatalf("message %d of %s is %q", next, id, m.GetText())
			}
			next, after = next+1, m.GetSeq()
		}
		left = further
	}
	if next != count {
		b.t.Errorf("%s has %d messages", id, next)
	}
}

// TestAPieceIsRecordedOnceThoughTheDaemonIsKilled: the next daemon reads the journal from its
// beginning, in the same pieces.
func TestAPieceIsRecordedOnceThoughTheDaemonIsKilled(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	const messages = 240
	listeners := b.subscribe("news", 12)
	for i := range messages {
		b.write(journal.Row{Op: journal.Send, Stream: "news", Text: fmt.Sprint(i)})
	}
	a := b.agent()
	if _, err := b.record(t.Context(), a, b.reports(a)); err != nil {
		t.Fatal(err)
	}
	if got := b.agent().Incarnation.JournalUpto; got == 0 || got >= messages {
		t.Fatalf("the first piece has %d rows", got)
	}
	b.restart()
	b.tell()
	b.consume()
	for _, id := range listeners {
		b.wantOrder(id, messages)
	}
}
