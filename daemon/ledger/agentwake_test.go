package ledger

import (
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

const (
	wakeOnIdle    = agboxv1.AgentWakeOn_AGENT_WAKE_ON_IDLE
	wakeOnMessage = agboxv1.AgentWakeOn_AGENT_WAKE_ON_MESSAGE
)

// TestAMessageWakesWhomItMay tries each pause, with and without a question beside it.
func TestAMessageWakesWhomItMay(t *testing.T) {
	for value, name := range agboxv1.PauseReason_name {
		reason := agboxv1.PauseReason(value)
		if reason == 0 {
			continue
		}
		for _, on := range []agboxv1.AgentWakeOn{0, wakeOnIdle, wakeOnMessage} {
			for _, question := range []bool{false, true} {
				l := fresh(t)
				var rounds []string
				ready(t, l, "s")
				n := agentOf("a", "", "s")
				n.Spec.WakeOn = on
				a := spawn(t, l, n)
				if question {
					var err error
					if a, err = l.PauseAgent(t.Context(), "a", "May I?"); err != nil {
						t.Fatal(err)
					}
				}
				pausedBy(t, l, a, reason)
				l.NotifyAgents(func(id string) { rounds = append(rounds, id) })
				send(t, l, "a", "", "one")
				send(t, l, "a", "", "two")
				a, _ = l.Agent("a")
				want := agents.WakesOnMessage(reason, on) && !question
				if a.Pause.Woken != want || a.AwaitsApproval() != (question || reason == forApproval) || !slices.Equal(rounds, []string{"a", "a"}) {
					t.Errorf("%s, wake_on %v, question %v: woken %v, want %v; it waits for an answer: %v; rounds of %v", name, on, question, a.Pause.Woken, want, a.AwaitsApproval(), rounds)
				}
			}
		}
	}
}

// count is how many events of a type an agent has.
func count(t *testing.T, l *Ledger, id string, typ agboxv1.AgentEventType) (n int) {
	t.Helper()
	for _, got := range history(t, l, id) {
		if got == typ {
			n++
		}
	}
	return n
}

// TestAMessageHoldsWhomNobodyHolds: an agent that a message wakes goes on until it has read that,
// once for each time that it is called, also over a restart of the daemon.
func TestAMessageHoldsWhomNobodyHolds(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	n := heldAgentOf("a", "s", "client:c")
	n.Spec.WakeOn = wakeOnMessage
	spawn(t, l, n)
	settleAgent(t, l, "a")
	is := func(when string, begun int, holders ...string) {
		t.Helper()
		settleAgent(t, l, "a")
		a, _ := l.Agent("a")
		var held []string
		for _, h := range a.Holders {
			held = append(held, h.ID)
		}
		if runs := a.Incarnation != nil; runs != (len(holders) > 0) || !slices.Equal(held, holders) || count(t, l, "a", agboxv1.AgentEventType_AGENT_BEGUN) != begun || a.Suspended() == runs {
			t.Fatalf("%s: it runs: %v as %s, %d times, held by %q", when, runs, a.Word(), a.Incarnations, held)
		}
	}
	is("held by a client", 1, "client:c")
	if _, err := l.CloseHold(t.Context(), "a", "client:c", "test"); err != nil {
		t.Fatal(err)
	}
	is("held by nobody", 1)
	for n := range 3 {
		seq := send(t, l, "a", "", "one")
		is("called", n+2, agents.InboxHolder)
		seq = max(seq, send(t, l, "a", "", "two"))
		is("called again", n+2, agents.InboxHolder)
		stop()
		l, stop = open(t, dir)
		is("after a restart", n+2, agents.InboxHolder)
		for range 3 {
			is("with the same messages", n+2, agents.InboxHolder)
		}
		if err := l.Acknowledge(t.Context(), "a", seq); err != nil {
			t.Fatal(err)
		}
		if _, err := l.EndHold(t.Context(), "a", agents.InboxHolder, "", nil); err != nil {
			t.Fatal(err)
		}
		is("with all read", n+2)
	}
	stop()
}

// TestTheLastHolderLeavesAnAgentThatHasMessages: what it was sent is not lost with the hold.
func TestTheLastHolderLeavesAnAgentThatHasMessages(t *testing.T) {
	for _, on := range []agboxv1.AgentWakeOn{wakeOnIdle, wakeOnMessage} {
		l := fresh(t)
		ready(t, l, "s")
		n := heldAgentOf("a", "s", "client:c")
		n.Spec.WakeOn = on
		spawn(t, l, n)
		settleAgent(t, l, "a")
		send(t, l, "a", "", "one")
		if _, err := l.CloseHold(t.Context(), "a", "client:c", "test"); err != nil {
			t.Fatal(err)
		}
		settleAgent(t, l, "a")
		if a, _ := l.Agent("a"); a.Suspended() != (on == wakeOnIdle) || a.HeldBy(agents.InboxHolder) == a.Suspended() {
			t.Errorf("wake_on %v: it is %s, held by %v", on, a.Word(), a.Holders)
		}
		// The hold of messages does not end while there is one, and not for a late decision.
		if on == wakeOnMessage {
			a, err := l.EndHold(t.Context(), "a", agents.InboxHolder, "", nil)
			if err != nil || !a.HeldBy(agents.InboxHolder) {
				t.Errorf("it is held by %v, %v", a.Holders, err)
			}
		}
	}
}

// TestAMessageDuringADrain wakes the agent once the drain is over; one from before does not.
func TestAMessageDuringADrain(t *testing.T) {
	for _, row := range []struct {
		name          string
		on            agboxv1.AgentWakeOn
		before, later bool
		runs          bool
	}{
		{"none", wakeOnMessage, false, false, false},
		{"before", wakeOnMessage, true, false, false},
		{"during it", wakeOnMessage, false, true, true},
		{"during it, but only IDLE is woken", wakeOnIdle, false, true, false},
	} {
		for _, how := range []string{"user", "sandbox", "hold"} {
			if how == "hold" && row.before { // then what it was sent holds it
				continue
			}
			l := fresh(t)
			ready(t, l, "s")
			n := heldAgentOf("a", "s", "client:c")
			n.Spec.WakeOn = row.on
			spawn(t, l, n)
			settleAgent(t, l, "a")
			if row.before {
				send(t, l, "a", "", "before")
				for l.now().Equal(messages(t, l, "a")[0].GetAt().AsTime()) { // the clock goes on
				}
			}
			var err error
			switch how {
			case "user":
				_, err = l.RequestDrain(t.Context(), "a")
			case "hold":
				_, err = l.CloseHold(t.Context(), "a", "client:c", "test")
				emitAgent(t, l, now(t, l, "a").Record, next(l, "a").Event) // it is to be suspended
			default:
				_, err = l.RequestStop(t.Context(), "s", "test")
			}
			if err != nil {
				t.Fatal(err)
			}
			if row.later {
				send(t, l, "a", "", "later")
			}
			a := now(t, l, "a")
			endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, DrainedFor: agents.DrainedFor(a.Record)})
			for range 4 {
				a = now(t, l, "a")
				seen := agents.Seen{Sandbox: agents.SandboxReady}
				if how == "sandbox" {
					seen.Sandbox = agents.SandboxStopped
				}
				step := agents.Next(a.Record, seen, agents.RulesOf(a.Spec), time.Unix(0, 0))
				if runs := step.Do == agents.EnsureSandbox || step.Event.GetType() == agboxv1.AgentEventType_AGENT_BEGUN; runs || step.Do == agents.Rest {
					if runs != row.runs {
						t.Errorf("a message %s, drained by the %s: it goes on: %v (%s)", row.name, how, runs, a.Word())
					}
					break
				}
				emitAgent(t, l, a.Record, step.Event)
			}
		}
	}
}
