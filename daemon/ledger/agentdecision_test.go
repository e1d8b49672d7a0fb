package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// settleAgent does what rounds of an agent do whose sandbox is ready, until it rests. A drain
// is over at once.
func settleAgent(t *testing.T, l *Ledger, id string) {
	t.Helper()
	for range 20 {
		a, _ := l.Agent(id)
		seen := agents.Seen{Sandbox: agents.SandboxReady, PauseMark: a.PauseMark()}
		if a.Incarnation != nil {
			seen.Exec = agents.ExecRunning
		}
		switch step := agents.Next(a.Record, seen, agents.RulesOf(a.Spec), time.Unix(0, 0)); step.Do {
		case agents.Emit:
			emitAgent(t, l, a.Record, step.Event)
		case agents.Drain:
			endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: step.End, DrainedFor: step.Pause})
		default:
			return
		}
	}
	t.Fatal("it does not come to rest")
}

func endIncarnation(t *testing.T, l *Ledger, a Agent, end *agboxv1.IncarnationEnd) {
	t.Helper()
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: a.Incarnation.N, Details: &agboxv1.AgentEvent_End{End: end},
	})
}

// TestOnlyADecisionEndsAWaitForOne does any two things to an agent that waits for an approval,
// with rounds in between: it goes on waiting. Then it is approved, and goes on.
func TestOnlyADecisionEndsAWaitForOne(t *testing.T) {
	things := map[string]func(l *Ledger, id string){
		"drain":   func(l *Ledger, id string) { _, _ = l.RequestDrain(t.Context(), id) },
		"resume":  func(l *Ledger, id string) { _, _ = l.WakeAgent(t.Context(), id) },
		"pause":   func(l *Ledger, id string) { _, _ = l.PauseAgent(t.Context(), id, "again") },
		"message": func(l *Ledger, id string) { _, _ = l.SendMessage(t.Context(), agents.Init, id, "", "hello") },
		"unhold":  func(l *Ledger, id string) { _, _ = l.CloseHold(t.Context(), id, "client:c", "") },
		"hold":    func(l *Ledger, id string) { _, _ = l.OpenHold(t.Context(), id, "client:c", time.Second) },
		"resolve": func(l *Ledger, id string) {
			_, _ = l.ResolveAgent(t.Context(), id, agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE)
		},
	}
	for _, kind := range []agboxv1.IncarnationEndKind{
		agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST,
		agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT,
	} {
		things[kind.String()] = func(l *Ledger, id string) {
			if a, _ := l.Agent(id); a.Incarnation != nil {
				endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: kind, ExitCode: 1, DrainedFor: forDrain})
			}
		}
	}
	names := sortedNames(things)
	for _, first := range names {
		l := fresh(t)
		ready(t, l, "s")
		for i, second := range names {
			id := fmt.Sprint("a", i)
			n := agentOf(id, "", "s")
			n.Spec.Lifetime, n.Holder, n.Linger = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, "client:c", time.Second
			n.Spec.WakeOn = agboxv1.AgentWakeOn_AGENT_WAKE_ON_MESSAGE // but no message decides
			spawn(t, l, n)
			settleAgent(t, l, id)
			if _, err := l.PauseAgent(t.Context(), id, "may it?"); err != nil {
				t.Fatal(err)
			}
			for _, thing := range []string{first, second, "hold", "resume", "resume"} {
				things[thing](l, id)
				settleAgent(t, l, id)
				if a, _ := l.Agent(id); a.Word() != "WAITING_FOR_APPROVAL" {
					t.Fatalf("%s, %s: after %s it is %s", first, second, thing, a.Word())
				}
			}
			if _, err := l.ApproveAgent(t.Context(), id, approved, "yes"); err != nil {
				t.Fatal(err)
			}
			settleAgent(t, l, id)
			if a, _ := l.Agent(id); a.Incarnation == nil {
				t.Fatalf("%s, %s: it does not go on: %s %+v", first, second, a.Word(), a.Pause)
			}
		}
	}
}

func sortedNames[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
