package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAPauseRemembersHowTheSandboxWas(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	sb, _ := l.Sandbox("s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	emitAgent(t, l, a.Record, begun(1))
	a, err := l.PauseAgent(t.Context(), "a", "")
	if err != nil || a.Away.GetSandboxId() != "s" || !a.Away.GetReadyAt().AsTime().Equal(sb.ReadyAt) || a.AwaySince.IsZero() {
		t.Fatalf("%+v, %v", a.Away, err)
	}
	before := a.Away
	a = pausedBy(t, l, a, agboxv1.PauseReason_PAUSE_REASON_IDLE)
	if a.Away != before {
		t.Error("a second reason for the same pause has replaced the picture")
	}
}
