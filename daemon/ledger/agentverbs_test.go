package ledger

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestVerbsAgreeWithTheWordShown does any two things to an agent in each pause, with and without its
// program, before and after somebody has ended the pause. What a list shows, what is accepted and
// what a refusal says must be the same.
func TestVerbsAgreeWithTheWordShown(t *testing.T) {
	for value, name := range agboxv1.PauseReason_name {
		reason := agboxv1.PauseReason(value)
		if reason == 0 {
			continue
		}
		t.Run(strings.TrimPrefix(name, "PAUSE_REASON_"), func(t *testing.T) {
			t.Parallel()
			l := fresh(t)
			ready(t, l, "s")
			all := verbs(t, l)
			delete(all, "nothing")
			for _, ended := range []bool{false, true} {
				for _, woken := range []bool{false, true} {
					for _, first := range sortedNames(all) {
						for _, second := range []string{"approve", "deny", "reap", "resume", "revive"} {
							id := strings.Join([]string{first, second, map[bool]string{true: "woken", false: "waits"}[woken], map[bool]string{true: "ended", false: "runs"}[ended]}, "-")
							if !pausedAgent(t, l, id, reason, woken, ended) {
								continue
							}
							for _, verb := range []string{first, second} {
								agrees(t, l, id, verb, all[verb])
							}
							if _, err := l.RequestKill(t.Context(), id, &agboxv1.AgentKill{}); err != nil {
								t.Fatal(err)
							}
							if a := now(t, l, id); a.Incarnation != nil {
								endIncarnation(t, l, a, new(agboxv1.IncarnationEnd))
							}
							settleAgent(t, l, id) // a sandbox has room for so many
						}
					}
				}
			}
		})
	}
}

// pausedAgent makes an agent that is paused, and was woken since, or whose program has ended. It does
// nothing if that cannot be: what has ended a program begins another one, and so wakes the agent.
func pausedAgent(t *testing.T, l *Ledger, id string, reason agboxv1.PauseReason, woken, ended bool) bool {
	t.Helper()
	alone := reason != forApproval && reason != forIdle && reason != agboxv1.PauseReason_PAUSE_REASON_CONFLICT
	timed := reason == agboxv1.PauseReason_PAUSE_REASON_CRASH || reason == agboxv1.PauseReason_PAUSE_REASON_SUCCESSION
	if alone && !ended && !woken || timed && ended && woken {
		return false
	}
	spawn(t, l, agentOf(id, "", "s"))
	settleAgent(t, l, id)
	pausedBy(t, l, now(t, l, id), reason)
	if ended || alone {
		endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, DrainedFor: reason})
		pausedBy(t, l, now(t, l, id), reason)
	}
	if woken && !timed {
		wake := new(agboxv1.AgentWake)
		if reason == forApproval {
			wake.Approval = approved
		}
		emitAgent(t, l, now(t, l, id).Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: wake}})
	}
	if woken && alone && !ended {
		emitAgent(t, l, now(t, l, id).Record, begun(2))
	}
	return true
}

// agrees does one thing, twice, and compares the answers with what is shown.
func agrees(t *testing.T, l *Ledger, id, verb string, do func(id string) (Agent, error)) {
	t.Helper()
	before := now(t, l, id)
	word, verdict := before.Word(), before.Verdict()
	_, err := do(id)
	after := now(t, l, id)
	fails := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: shown as %s (%s), %s is answered with %v, then it is %s (%s): "+format,
			append([]any{id, word, before.PauseNote(), verb, err, after.Word(), after.PauseNote()}, args...)...)
	}
	if before.Over() {
		return
	}
	refused := err != nil
	if refused && !strings.Contains(err.Error(), " is "+word+" ") && !strings.Contains(err.Error(), " is "+word+",") {
		fails("the refusal names another state")
	}
	switch waits := word == "WAITING_FOR_APPROVAL"; verb {
	case "approve", "deny":
		decides := map[string]string{"approve": "approved", "deny": "denied"}[verb]
		switch {
		case refused != (!waits && verdict != decides):
			fails("it waits: %v, and was %q", waits, verdict)
		case refused && verdict != "" && !strings.Contains(err.Error(), "it was "+verdict+" already"):
			fails("the refusal does not say that it was %s", verdict)
		case !refused && (after.Word() == "WAITING_FOR_APPROVAL" || after.Verdict() != decides || !strings.Contains(after.PauseNote(), "It was "+decides)):
			fails("it still waits, or does not say so")
		}
	case "revive", "reap":
		if refused != (word != "ORPHANED" || verb == "reap" && before.Incarnation != nil) {
			fails("only an ORPHANED agent is resolved, and reaped only before it starts")
		}
	case "resume":
		if refused && (before.Pause.Woken || strings.Contains(err.Error(), "it was not drained")) {
			fails("it was resumed before, or is paused")
		}
	default:
		if refused && before.Kill == nil {
			fails("it is refused")
		}
	}
	if refused || verb == "reap" {
		return
	}
	again, err := do(id)
	if hint := err != nil && strings.Contains(err.Error(), "agbox agent approve"); (err != nil || again.LastSequence != after.LastSequence) && !hint {
		fails("again it is answered with %v, event %d after %d", err, again.LastSequence, after.LastSequence)
	}
}
