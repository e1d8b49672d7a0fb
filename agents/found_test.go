package agents

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestNoIncarnationBeginsBesideOneThatWasLost: its container may be back, with its process.
func TestNoIncarnationBeginsBesideOneThatWasLost(t *testing.T) {
	h := working(t)
	h.endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST})
	undecided := h.r
	h.add(Ending(h.r, rules()))
	ready := Seen{Sandbox: SandboxReady}
	if step := Next(h.r, ready, rules(), t0); step.Event.GetType() != agboxv1.AgentEventType_AGENT_BEGUN {
		t.Fatalf("nothing of it is left: %s", step.Do)
	}
	unsought := ready
	unsought.Unsought = true
	if step := Next(h.r, unsought, rules(), t0); step.Do != Rest || step.Wake.IsZero() {
		t.Errorf("its process may be found: %s", step.Do)
	}
	found := ready
	found.Found = true
	for name, r := range map[string]Record{"undecided": undecided, "paused": h.r} {
		if step := Next(r, found, rules(), t0); step.Do != EndFound {
			t.Errorf("%s, its process is back: %s", name, step.Do)
		}
	}
	reaps := rules()
	reaps.Revival = Reap
	over := h.add(Next(h.r, ready, reaps, t0).Event).r
	if step := Next(over, found, reaps, t0); !over.Over() || step.Do != EndFound {
		t.Errorf("it is over (%t), its process is back: %s", over.Over(), step.Do)
	}
}
