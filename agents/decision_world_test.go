package agents

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// asker is a world in which people ask for decisions and make them. It knows what they know: who
// has asked and who has decided. It judges the record by that.
type asker struct {
	*world
	// open means that somebody was asked and has not decided. answer is the newest decision.
	open   bool
	answer agboxv1.AgentApproval
	// history is what happened, for a failure.
	history []string
}

// outside is what people and programs can do, and what can happen to both, by the words for it.
// Each comes about as it does in an install: by a report, a request or the state of the sandbox,
// and then by what Next makes of that.
func (x *asker) outside() map[string]func() {
	report := func(ev *agboxv1.AgentEvent) {
		if x.running != "" && x.r.Incarnation != nil && x.r.Incarnation.ExecID == x.running {
			ev.Incarnation = x.r.Incarnation.N
			x.emit(ev)
		}
	}
	dies := func(end *agboxv1.IncarnationEnd) func() {
		return func() { end.Spoke = true; x.die(end) }
	}
	sandbox := func(from []Sandbox, to Sandbox) func() {
		return func() {
			if slices.Contains(from, x.sandbox) {
				x.sandbox = to
			}
		}
	}
	return map[string]func(){
		"it crashes": func() {
			dies(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 9, ErrorMessage: string(rune('a' + x.r.Crashes))})()
		},
		"SIGTERM ends it":         dies(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143}),
		"its start finds no room": dies(&agboxv1.IncarnationEnd{Kind: neverStarted, ErrorMessage: "No room."}),
		"it is lost": func() {
			dies(&agboxv1.IncarnationEnd{Kind: lost})()
			sandbox([]Sandbox{SandboxReady, SandboxMaking}, SandboxFailed)()
		},
		"its sandbox is stopped": sandbox([]Sandbox{SandboxReady}, SandboxStopping),
		"its sandbox is started": sandbox([]Sandbox{SandboxStopped, SandboxIdle, SandboxFailed}, SandboxMaking),
		"what goes on gets on":   func() { x.pass() },
		"half an hour passes":    func() { x.now = x.now.Add(31 * time.Minute) },
		"its context is used up": func() {
			report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CONTEXT, Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Context: contextDead}}})
		},
		"it plans": func() { report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: Planning}) },
		"it idles": func() {
			if x.r.State != Paused {
				report(pauseOf(agboxv1.PauseReason_PAUSE_REASON_IDLE))
			}
		},
		"its leases conflict": func() {
			report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_MANIFEST, Observation: x.r.PendingObservation(), Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{}}})
			x.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CONFLICT, Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Verdict: agboxv1.LeaseVerdict_LEASE_VERDICT_DIE}}})
		},
		"the conflict is over": func() { x.wakeFrom(agboxv1.PauseReason_PAUSE_REASON_CONFLICT) },
		"it goes on": func() {
			if x.r.State == Paused && x.r.Pause.Woken && x.r.Incarnation != nil {
				report(resumed(x.r, x.r.GoesOn(), x.r.PendingObservation()))
			}
		},
		"a message comes":   func() { x.wakeFrom(agboxv1.PauseReason_PAUSE_REASON_IDLE) },
		"nobody holds it":   func() { x.letGo() },
		"it is held":        func() { x.world.open(ClientHolder("c")) },
		"a user drains it":  func() { x.drain() },
		"a user resumes it": func() { x.resume() },
		"a user revives it": func() { x.wakeFrom(agboxv1.PauseReason_PAUSE_REASON_ORPHANED) },
		"a user asks": func() {
			switch {
			case x.r.Kill != nil || x.r.Done != nil || x.open || x.r.Over():
			case x.r.Undecided:
				x.ask(wishOf(forApproval))
			default:
				x.ask(pauseOf(forApproval))
			}
		},
		"its program asks": func() {
			if x.r.State != Paused && x.r.Done == nil && x.running != "" && x.r.Incarnation != nil && x.r.Incarnation.ExecID == x.running {
				x.ask(pauseOf(forApproval))
			}
		},
		"a user approves": func() { x.decide(agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED) },
		"a user denies":   func() { x.decide(agboxv1.AgentApproval_AGENT_APPROVAL_DENIED) },
	}
}

func (x *asker) ask(ev *agboxv1.AgentEvent) {
	if x.emit(ev) {
		x.open, x.answer = true, 0
	}
}

// decide decides as often as it is shown that somebody should.
func (x *asker) decide(answer agboxv1.AgentApproval) {
	if x.r.Word() == "WAITING_FOR_APPROVAL" && x.emit(wakeOf(answer)) {
		x.open, x.answer = false, answer
	}
}

// wakeFrom wakes the agent from a pause of one reason.
func (x *asker) wakeFrom(reason agboxv1.PauseReason) {
	if x.r.State == Paused && x.r.Pause.Reason == reason && !x.r.Pause.Woken {
		x.emit(wakeOf(0))
	}
}

// drain, resume and letGo do what the ledger does when somebody asks for that.
func (x *asker) drain() {
	if x.r.Kill == nil && !x.r.Over() && x.r.PauseWanted.GetReason() != forRequest {
		x.emit(wishOf(forRequest))
	}
}

func (x *asker) resume() {
	switch {
	case x.r.PauseWanted.GetReason() == forRequest:
		x.emit(wishOf(agboxv1.PauseReason_PAUSE_REASON_DRAINED))
	case x.r.State == Paused && !x.r.Suspended():
		for _, reason := range []agboxv1.PauseReason{forRequest, agboxv1.PauseReason_PAUSE_REASON_DRAINED, agboxv1.PauseReason_PAUSE_REASON_IDLE} {
			x.wakeFrom(reason)
		}
	}
}

func (x *asker) letGo() {
	for _, h := range x.r.Holders {
		x.emit(Closed(h.ID, ""))
	}
}

// judge compares what is with what the people know.
func (x *asker) judge(began uint32) {
	switch {
	case x.r.Over():
		x.open = false
	case x.r.AwaitsApproval() != x.open:
		x.t.Fatalf("somebody has to decide: %v, and it waits: %v; after %q\n%v", x.open, x.r.AwaitsApproval(), x.history, x.world.log)
	case x.open && x.r.Incarnations > began:
		x.t.Fatalf("it begins although nobody has decided; after %q\n%v", x.history, x.world.log)
	case x.open && x.r.State == Paused && x.r.Word() != "WAITING_FOR_APPROVAL":
		x.t.Fatalf("it is shown as %s; after %q", x.r.Word(), x.history)
	case !x.open && x.r.Word() == "WAITING_FOR_APPROVAL":
		x.t.Fatalf("it is shown as %s although somebody has decided; after %q", x.r.Word(), x.history)
	case x.open && x.r.State != Paused && x.r.PauseWanted == nil && !x.r.Undecided:
		x.t.Fatalf("it works (%v) although nobody has decided; after %q\n%v", x.r.State, x.history, x.world.log)
	case !x.open && x.answer != 0 && x.r.State == Paused && x.r.Decision != nil && x.r.Decision.Approval != x.answer:
		x.t.Fatalf("the answer was %v, and it is told %v; after %q", x.answer, x.r.Decision.Approval, x.history)
	}
}

// TestAQuestionOutlastsWhateverMakesAnAgentPause lets what makes agents pause happen, in any order
// and at any moment of what follows from it: crashes, drains, stops of the sandbox, losses, idle
// times, conflicts, successions, the end of the last hold, starts without room. While somebody has
// to decide, no program is started and none goes on; nobody is asked twice; and once somebody has
// decided, and nothing else keeps it, it goes on.
func TestAQuestionOutlastsWhateverMakesAnAgentPause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &asker{world: &world{t: t, rules: rules(), now: t0, sandbox: SandboxMaking, accepted: map[string]bool{}}}
		x.rules.ReadyStart = rapid.Bool().Draw(t, "ready at start")
		x.rules.Retry.Attempts, x.rules.Retry.SameError = 1000, 1000
		x.rules.Revival = rapid.SampledFrom([]Revival{Revive, Ask}).Draw(t, "revival")
		x.emit(&agboxv1.AgentEvent{AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
			SandboxId: "s", Parent: "p", Lifetime: agboxv1.AgentLifetime(rapid.IntRange(1, 2).Draw(t, "lifetime")),
		}}})
		outside := x.outside()
		names := slices.Sorted(maps.Keys(outside))
		for range 3 { // what this is about happens often
			names = append(names, "a user asks", "its program asks", "a user approves", "a user drains it", "what goes on gets on")
		}
		do := func(name string) {
			x.history = append(x.history, name)
			began := x.r.Incarnations
			outside[name]()
			x.judge(began)
		}
		get := func(steps int) {
			for range steps {
				began := x.r.Incarnations
				rests := x.step()
				x.judge(began)
				if rests {
					return
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "moves") {
			do(rapid.SampledFrom(names).Draw(t, "move"))
			get(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 50}).Draw(t, "steps"))
		}
		// Everything that keeps it ends.
		for range 20 {
			for _, name := range []string{"a user approves", "it is held", "a user resumes it", "a user revives it", "the conflict is over", "a message comes", "its sandbox is started", "what goes on gets on", "it goes on", "half an hour passes"} {
				do(name)
				get(50)
			}
		}
		if x.open || !x.r.Over() && (x.r.State == Paused && !x.r.Pause.Woken) {
			t.Fatalf("it waits for ever: %+v, sandbox %v, after %q\n%v", x.r, x.sandbox, x.history, x.world.log)
		}
	})
}
