package ledger

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
)

// TestInitIsToldOnceThatAnAgentWaitsForRoom: and the breaker of its class counts nothing.
func TestInitIsToldOnceThatAnAgentWaitsForRoom(t *testing.T) {
	t.Parallel()
	l, stop := open(t, t.TempDir())
	defer stop()
	ready(t, l, "s")
	n := agentOf("a", "one", "s")
	n.Spec.Class = "c"
	a := spawn(t, l, n)
	for try := range uint32(5) {
		a = emitAgent(t, l, a.Record, begun(try+1))
		end := neverStarted(try + 1)
		end.GetEnd().ErrorMessage = "The start cannot be written down."
		a = emitAgent(t, l, a.Record, end)
	}
	told, _, err := l.Messages(t.Context(), agents.Init, 0, 1<<20)
	if err != nil || len(told) != 1 || told[0].GetFrom() != "a" || !strings.Contains(told[0].GetText(), "cannot be written down") {
		t.Errorf("init was told %v (%v), want one message", told, err)
	}
	if b := l.Breaker("c"); !b.Until.IsZero() || a.Crashes != 0 {
		t.Errorf("the breaker is %+v, and %d crashes are counted", b, a.Crashes)
	}
}
