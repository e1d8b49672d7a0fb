package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// observations returns the numbers of the messages in an inbox that say what changed during a
// pause.
func observations(t *testing.T, l *Ledger, id string) (list []uint64) {
	t.Helper()
	all, _, err := l.Messages(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION {
			list = append(list, m.GetSeq())
		}
	}
	return list
}

// TestTheInboxTellsOfThePauseUntilTheAgentGoesOn follows one agent through pauses with and
// without a running program.
func TestTheInboxTellsOfThePauseUntilTheAgentGoesOn(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, begun(1))
	want := func(when string, seqs ...uint64) {
		t.Helper()
		got := observations(t, l, "a")
		if len(got) != len(seqs) || len(got) > 0 && got[0] != seqs[0] || l.Observes("a") != (len(seqs) > 0) {
			t.Errorf("%s the inbox has %d; want %d", when, got, seqs)
		}
		if n := l.Unread("a"); n != 0 {
			t.Errorf("%s %d messages are unread", when, n)
		}
	}
	approve := func() Agent {
		t.Helper()
		if _, err := l.PauseAgent(t.Context(), "a", "look first"); err != nil {
			t.Fatal(err)
		}
		a, err := l.ApproveAgent(t.Context(), "a", approved, "")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	resume := func(a Agent, number uint64) {
		t.Helper()
		if _, err := l.ResumeOnRequest(t.Context(), "a", Asked{a.Incarnation.N, number}, a.PendingObservation(), false); err != nil {
			t.Fatal(err)
		}
	}
	want("before a pause")
	a = approve()
	want("after the approval", 1)
	stop()
	l, stop = open(t, dir)
	defer stop()
	want("after a restart", 1)
	resume(a, 1)
	want("when it goes on")

	a = approve()
	want("after the second pause", 2)
	if err := l.Acknowledge(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	want("once it is acknowledged")
	resume(a, 2)

	a = approve()
	want("after the third pause", 3)
	a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED}},
	})
	want("without a program")
	a = emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
	if a = emitAgent(t, l, a.Record, begun(2)); a.PendingObservation() == 0 {
		t.Fatalf("the next incarnation has nothing to take: %+v", a.Record)
	}
	want("for the next incarnation", 4)
	resume(a, 1)
	want("at the end")
}
