package agents

import (
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// heldAgent is an agent of agent "p" that lives as long as somebody holds it.
func heldAgent(t *testing.T) *history {
	h := &history{t: t, at: t0}
	return h.add(&agboxv1.AgentEvent{
		AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED,
		Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Parent: "p", SandboxId: "s", Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}},
	})
}

func TestAHeldAgentGoesOnWhileItIsHeld(t *testing.T) {
	const parent, client = "agent:p", "client:c"
	run := Seen{Sandbox: SandboxReady, Exec: ExecRunning}
	idle := Seen{Sandbox: SandboxReady}
	up := func() *history { return heldAgent(t).begun().phase(Planning).phase(Executing) }
	drained := &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, DrainedFor: agboxv1.PauseReason_PAUSE_REASON_UNHELD}
	told := up().pauseFor(agboxv1.PauseReason_PAUSE_REASON_APPROVAL).r.PauseMark()
	closed := func(h *history) *history { return h.add(Closed(parent, "")) }
	suspendedAgent := func() *history {
		h := closed(up())
		h.add(Next(h.r, run, rules(), t0).Event).endWith(drained)
		return h.add(Ending(h.r, rules()))
	}
	for _, row := range []struct {
		name string
		h    *history
		seen Seen
		want string
	}{
		{"held by its parent", up(), run, "rest"},
		{"closed", closed(up()), run, "AGENT_PAUSE_REQUESTED"},
		{"held by a client too", closed(up().add(Opened(client, time.Second))), run, "rest"},
		{"closed before it begins", closed(heldAgent(t)), idle, "AGENT_PAUSED"},
		{"closed while it waits for an approval", closed(up().pauseFor(agboxv1.PauseReason_PAUSE_REASON_APPROVAL)), Seen{Sandbox: SandboxReady, Exec: ExecRunning, PauseMark: told}, "rest until 30m0s"},
		{"closed while it idles", closed(up().pauseFor(agboxv1.PauseReason_PAUSE_REASON_IDLE)), Seen{Sandbox: SandboxReady, Exec: ExecRunning, PauseMark: told}, "AGENT_PAUSE_REQUESTED"},
		{"closed after a crash", closed(up().crash("no")), idle, "rest until 5s"},
		{"closed after its sandbox was stopped", closed(up().endWith(drained).pauseFor(agboxv1.PauseReason_PAUSE_REASON_DRAINED)), idle, "AGENT_PAUSED"},
		{"suspended", suspendedAgent(), idle, "rest"},
		{"opened again", suspendedAgent().add(Opened(client, 0)).woken(), idle, "AGENT_BEGUN"},
		{"opened and closed again", suspendedAgent().add(Opened(client, 0)).woken().add(Closed(client, "")), idle, "AGENT_PAUSED"},
		{"a lost holder", up(), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Lost: client}, "end-hold"},
		{"a holder that may be lost", up(), Seen{Sandbox: SandboxReady, Exec: ExecRunning, LostAt: t0.Add(7 * time.Second)}, "rest until 7s"},
		{"detached", spawned(t).begun().phase(Planning).phase(Executing), run, "rest"},
	} {
		if got := say(Next(row.h.r, row.seen, rules(), t0)); got != row.want {
			t.Errorf("%s: %s; want %s", row.name, got, row.want)
		}
	}
	late := closed(up())
	late.add(Next(late.r, run, rules(), t0).Event).endWith(drained).add(Opened(client, 0)).add(&agboxv1.AgentEvent{ // as the ledger does
		Type: agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forDrain}},
	})
	if late.add(Ending(late.r, rules())); late.r.Word() == "SUSPENDED" || say(Next(late.r, idle, rules(), t0)) != "AGENT_BEGUN" {
		t.Errorf("held again between its end and the pause, it is %s: %s", late.r.Word(), say(Next(late.r, idle, rules(), t0)))
	}
	if r := suspendedAgent().r; r.Word() != "SUSPENDED" || !r.Suspended() || r.Crashes != 0 {
		t.Errorf("it is %s: %+v", r.Word(), r)
	}
	if r := up().r; !r.HeldOnlyBy("p") || up().add(Opened(client, 0)).r.HeldOnlyBy("p") || closed(up()).r.HeldOnlyBy("p") {
		t.Errorf("its holders are %v", r.Holders)
	}
}

func TestAnAgentSuspendedBeforeItBeganIsRefusedByItsBreaker(t *testing.T) {
	h := heldAgent(t).add(Closed("agent:p", ""))
	h.add(Next(h.r, Seen{Sandbox: SandboxReady}, rules(), t0).Event)
	h.add(Opened("client:c", 0)).woken()
	if got := say(Next(h.r, Seen{Sandbox: SandboxReady, BreakerOpen: true}, rules(), t0)); got != "end FAILED" {
		t.Errorf("the step is %s", got)
	}
}

func TestWhatBecomesOfAChild(t *testing.T) {
	kill := func(cascade agboxv1.KillCascade) *agboxv1.AgentKill { return &agboxv1.AgentKill{Cascade: cascade} }
	parents := []struct {
		name string
		kin  Kin
	}{
		{"ended or crashed", Kin{ParentOver: true, Heir: "g"}},
		{"killed", Kin{ParentOver: true, Heir: "g", ParentKill: kill(0)}},
		{"killed --no-cascade", Kin{ParentOver: true, Heir: "g", ParentKill: kill(agboxv1.KillCascade_KILL_CASCADE_NONE)}},
		{"killed --cascade", Kin{ParentOver: true, Heir: "g", ParentKill: kill(agboxv1.KillCascade_KILL_CASCADE_TREE)}},
	}
	for _, row := range []struct {
		child string
		h     func() *history
		// holders and orphaned are after an adoption: that the parent was killed closes its hold.
		holders, orphaned string
		kills             [4]bool
	}{
		{"held", func() *history { return heldAgent(t) }, "agent:g", "", [4]bool{false, true, false, true}},
		{"held by a client too", func() *history { return heldAgent(t).add(Opened("client:c", 0)) }, "client:c agent:g", "client:c", [4]bool{false, false, false, true}},
		{"held by the new parent too", func() *history { return heldAgent(t).add(Opened("agent:g", 0)) }, "agent:g", "agent:g", [4]bool{false, false, false, true}},
		{"held by a client alone", func() *history { return heldAgent(t).add(Closed("agent:p", "")).add(Opened("client:c", 0)) }, "client:c", "client:c", [4]bool{false, false, false, true}},
		{"closed by the parent", func() *history { return heldAgent(t).add(Closed("agent:p", "")) }, "", "", [4]bool{false, false, false, true}},
		{"detached", func() *history { return spawned(t).add(reparented("init", "p")) }, "", "", [4]bool{false, false, false, true}},
	} {
		for i, parent := range parents {
			h, want := row.h(), row.holders
			if parent.name == "killed" {
				want = row.orphaned
			}
			seen := Seen{Sandbox: SandboxReady, Kin: parent.kin}
			step := Next(h.r, seen, rules(), t0)
			if step.Event.GetType() == agboxv1.AgentEventType_AGENT_CLOSED {
				step = Next(h.add(step.Event).r, seen, rules(), t0)
			}
			if killed := step.Event.GetType() == agboxv1.AgentEventType_AGENT_KILL_REQUESTED; killed != row.kills[i] {
				t.Errorf("parent %s, child %s: killed %v; want %v", parent.name, row.child, killed, row.kills[i])
			}
			if row.kills[i] {
				continue
			}
			var holders []string
			for _, holder := range h.add(step.Event).r.Holders {
				holders = append(holders, holder.ID)
			}
			if got := strings.Join(holders, " "); got != want || h.r.Parent != "g" {
				t.Errorf("parent %s, child %s: held by %q, its parent is %s", parent.name, row.child, got, h.r.Parent)
			}
		}
	}
}

// reparented is the adoption of an agent.
func reparented(to, from string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: to, From: from}},
	}
}
