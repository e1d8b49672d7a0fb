package agent

import (
	"testing"

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
