package execs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAnIncarnationBeginsWithWhatTheJournalsOfItsStackLeave(t *testing.T) {
	b := newBench(t)
	spawn := func(id, parent string, stack *agboxv1.AgentStack) ledger.Agent {
		t.Helper()
		a, err := b.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: parent, SandboxID: "a", Spec: &agboxv1.AgentSpec{Stack: stack}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	root := spawn("root", "", &agboxv1.AgentStack{Name: "team", JournalBytes: 200_000})
	child, other := spawn("child", "root", nil), spawn("other", "", nil)
	if _, err := b.ledger.EmitAgent(t.Context(), root.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: agents.ExecID("root", 1), SandboxId: "a", Attempt: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		size int64
		left uint64
	}{{0, 200_000}, {50_000, 150_000}, {190_000, leastJournal}, {1 << 40, leastJournal}} {
		name := filepath.Join(b.runner.paths.SandboxLogs("a"), logs.JournalName(agents.ExecID("root", 1)))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, row.size); err != nil {
			t.Fatal(err)
		}
		if got := b.runner.journalBytes(child); got != row.left {
			t.Errorf("with %d bytes of the root, %d are left for the child; want %d", row.size, got, row.left)
		}
	}
	// What the root has reported counts also after a move.
	for _, ev := range []*agboxv1.AgentEvent{
		{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
			Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED,
		}}},
		{Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: "remade"}}},
	} {
		root, _ = b.ledger.Agent("root")
		if _, err := b.ledger.EmitAgent(t.Context(), root.Record, ev); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.runner.journalBytes(child); got != leastJournal {
		t.Errorf("after a move of the root, %d bytes are left for the child", got)
	}
	if got := b.runner.journalBytes(other); got != 0 {
		t.Errorf("outside of the stack: %d", got)
	}
}

// TestAStartLooksAtNoJournalOfItsStackTwice: those of incarnations that have ended do not change.
func TestAStartLooksAtNoJournalOfItsStackTwice(t *testing.T) {
	b := newBench(t)
	spawn := func(id, parent string, stack *agboxv1.AgentStack) ledger.Agent {
		t.Helper()
		a, err := b.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: parent, SandboxID: "a", Spec: &agboxv1.AgentSpec{Stack: stack}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	emit := func(id string, ev *agboxv1.AgentEvent) {
		t.Helper()
		a, _ := b.ledger.Agent(id)
		if _, err := b.ledger.EmitAgent(t.Context(), a.Record, ev); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(id string, n uint32) {
		t.Helper()
		execID := agents.ExecID(id, n)
		emit(id, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: n,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: execID, SandboxId: "a", Attempt: 1}}})
		if err := os.WriteFile(filepath.Join(b.runner.paths.SandboxLogs("a"), logs.JournalName(execID)), make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	end := func(id string, n uint32) {
		t.Helper()
		emit(id, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: n, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
			Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED,
		}}})
	}
	want := func(what string, a ledger.Agent, looked, left uint64) {
		t.Helper()
		before := b.runner.looked.Load()
		if got := b.runner.journalBytes(a); got != left {
			t.Errorf("%s: %d bytes are left; want %d", what, got, left)
		}
		if got := b.runner.looked.Load() - before; got != looked {
			t.Errorf("%s: it looks at %d journals; want %d", what, got, looked)
		}
	}
	spawn("root", "", &agboxv1.AgentStack{Name: "team", JournalBytes: 200_000})
	nested := spawn("nested", "root", &agboxv1.AgentStack{Name: "crew", JournalBytes: 300_000})
	for i := range 10 {
		id := string(rune('a' + i))
		spawn(id, "nested", nil)
		begin(id, 1)
		end(id, 1)
		if i > 0 {
			emit(id, agents.Reaped("test"))
		}
	}
	spawn("busy", "nested", nil)
	begin("busy", 1)
	want("at first", nested, 11+1, 189_000) // the one that runs counts in both stacks
	want("again", nested, 2, 189_000)
	begin("a", 2)
	end("a", 2)
	want("after one more incarnation", nested, 3, 188_000)
	if _, err := b.ledger.DeleteAgent(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	want("after the removal of an agent", nested, 2, 189_000)
	if err := b.ledger.Forget(t.Context(), "a", []machine.TrimPart{{ExecID: agents.ExecID("a", 1)}}); err != nil {
		t.Fatal(err)
	}
	want("after the removal of a journal", nested, 2, 190_000)
	for _, id := range []string{"a", "d"} { // retention removes the file before the record
		if err := os.Remove(filepath.Join(b.runner.paths.SandboxLogs("a"), logs.JournalName(agents.ExecID(id, 1)))); err != nil {
			t.Fatal(err)
		}
	}
	b.ledger.RecountJournals("a")
	want("after the removal of files", nested, 11+1, 191_000)
	want("and again", nested, 2, 191_000)
}

func TestProbesAndWorkAreRefusedWhereTheSupervisorKnowsNone(t *testing.T) {
	for _, row := range []struct {
		spec    *agboxv1.AgentSpec
		refused bool
	}{
		{&agboxv1.AgentSpec{}, false},
		{&agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_PROBE}, true},
		{&agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT}, true},
		{&agboxv1.AgentSpec{Work: "/task.md"}, true},
		{&agboxv1.AgentSpec{Probes: &agboxv1.AgentProbes{Liveness: new(agboxv1.AgentProbe)}}, true},
	} {
		b := newBench(t)
		b.serve(&supervisor{boot: "boot1", protocol: 2, start: runs("boot1")})
		b.connect()
		row.spec.Command = []string{"sleep"}
		a, err := b.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "w", SandboxID: "a", Spec: row.spec})
		if err != nil {
			t.Fatal(err)
		}
		begun := &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: agents.ExecID("w", 1), SandboxId: "a", Attempt: 1}},
		}
		if _, err := b.ledger.EmitAgent(t.Context(), a.Record, begun); err != nil {
			t.Fatal(err)
		}
		_, err = b.runner.Create(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: agents.ExecID("w", 1), Command: row.spec.GetCommand()})
		if refused := err != nil && strings.Contains(err.Error(), "Create a new sandbox"); refused != row.refused || !refused && err != nil {
			t.Errorf("%v: error %v", row.spec, err)
		}
	}
}
