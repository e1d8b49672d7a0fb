package agents

import (
	"fmt"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAnOwnSandboxWhoseContainerIsGoneIsReplaced(t *testing.T) {
	lost := func() *history {
		h := working(t)
		h.r.Owned = true
		h.endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST})
		return h.add(Ending(h.r, rules()))
	}
	seen := Seen{Sandbox: SandboxFailed, Gone: true}
	h := lost()
	if step := Next(h.r, seen, rules(), t0); step.Do != Move {
		t.Errorf("its own container is gone: %s", step.Do)
	}
	if step := Next(h.r, Seen{Sandbox: SandboxFailed}, rules(), t0); step.Do != EnsureSandbox {
		t.Errorf("its sandbox failed otherwise: %s", step.Do)
	}
	asks := rules()
	asks.Revival = Ask
	if step := Next(h.r, seen, asks, t0); step.Do != Rest {
		t.Errorf("a person must decide: %s", step.Do)
	}
	h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: "new"}},
	})
	if h.r.SandboxID != "new" {
		t.Errorf("it is in sandbox %q", h.r.SandboxID)
	}
	if step := Next(h.r, seen, rules(), t0); step.Do == Move {
		t.Error("a new sandbox that fails before any incarnation is replaced too, for ever")
	}
	seen.Busy = true
	if step := Next(lost().r, seen, rules(), t0); step.Do != Rest || step.Wake.IsZero() {
		t.Errorf("another agent may run there: %s", step.Do)
	}
	shared := lost()
	shared.r.Owned = false
	if step := Next(shared.r, Seen{Sandbox: SandboxFailed, Gone: true, Kept: true}, rules(), t0); step.Do != Rest {
		t.Errorf("the owner of the sandbox takes it along: %s", step.Do)
	}
	if step := Next(shared.r, seen, rules(), t0); step.Do == Move {
		t.Error("a sandbox of others is replaced")
	}
}

func movedTo(id string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: id}}}
}

// TestARecordKnowsWhereItsIncarnationsRan also after moves, of which the newest are kept.
func TestARecordKnowsWhereItsIncarnationsRan(t *testing.T) {
	h := spawned(t)
	first := h.r.SandboxID
	if h.add(movedTo("0")); len(h.r.Stays()) != 0 { // with an agent that owns its sandbox
		t.Errorf("before the first incarnation it ran in %v", h.r.Stays())
	}
	h.r.SandboxID = first
	begin := func(sandbox string) {
		t.Helper()
		h.begun().crash(fmt.Sprint("crash in ", sandbox))
		if got := h.r.SandboxOf(h.r.Incarnations); got != sandbox {
			t.Fatalf("incarnation %d ran in %q; want %q", h.r.Incarnations, got, sandbox)
		}
	}
	begin(first)
	begin(first)
	h.add(movedTo("s1"))
	h.add(movedTo("s2")) // nothing ran in s1
	begin("s2")
	want := []Stay{{1, 2, first}, {3, 3, "s2"}}
	if got := h.r.Stays(); !slices.Equal(got, want) || h.r.SandboxOf(1) != first || h.r.SandboxOf(2) != first {
		t.Errorf("it ran in %v; want %v", got, want)
	}
	// Trimming keeps what says so.
	if h.add(movedTo("s3")); !slices.Equal(h.r.Stays(), want) {
		t.Errorf("after a move it ran in %v; want %v", h.r.Stays(), want)
	}
	r := h.r
	r.Incarnations, r.Crashes = 3, 0
	for n := range uint32(2 * KeptMoves) {
		r.Incarnations++
		r = r.moved(fmt.Sprint("m", n))
	}
	if len(r.Moves) != KeptMoves || r.SandboxOf(1) != "" || r.SandboxOf(r.Incarnations) != r.Moves[KeptMoves-1].SandboxID || r.SandboxOf(r.Moves[0].First) != r.Moves[0].SandboxID {
		t.Errorf("after many moves it is %v", r.Moves)
	}
}

func TestTrimmingKeepsWhereIncarnationsRan(t *testing.T) {
	r, log := Record{}, []*agboxv1.AgentEvent(nil)
	add := func(ev *agboxv1.AgentEvent) {
		ev.AgentId, ev.Sequence, ev.Position = "a", r.LastSequence+1, r.LastSequence+1
		r, log = Fold(r, ev), append(log, ev)
	}
	add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{SandboxId: "s"}}})
	for n := range uint32(40) {
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: n + 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: lost}}})
		add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forOrphan}}})
		if n == 20 {
			add(movedTo("later"))
		}
	}
	left := trimmed(t, log, 5, t0.Add(time.Hour))
	if r.SandboxOf(21) != "s" || r.SandboxOf(22) != "later" || len(left) == len(log) {
		t.Errorf("it ran in %v, and of %d events %d are left", r.Stays(), len(log), len(left))
	}
}
