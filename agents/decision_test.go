package agents

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// question is the oracle: whether somebody has to decide, as a person would say it who has
// seen the events and not the code.
type question struct {
	open   bool
	answer agboxv1.AgentApproval
}

func (q question) after(ev *agboxv1.AgentEvent) question {
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_PAUSED, agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED:
		if ev.GetPause().GetReason() == forApproval {
			return question{open: true}
		}
	case agboxv1.AgentEventType_AGENT_WOKEN:
		if answer := ev.GetWake().GetApproval(); answer != 0 {
			return question{answer: answer}
		}
	case agboxv1.AgentEventType_AGENT_RESUMED, agboxv1.AgentEventType_AGENT_MANIFEST:
		return question{open: q.open} // the answer is used up
	case agboxv1.AgentEventType_AGENT_ENDED:
		return question{}
	}
	return q
}

// asking is an agent together with the oracle.
type asking struct {
	t interface {
		Helper()
		Fatalf(format string, args ...any)
	}
	r       Record
	q       question
	history []*agboxv1.AgentEvent
}

// add folds an event, if it is legal, and compares the record with the oracle.
func (a *asking) add(ev *agboxv1.AgentEvent) {
	a.t.Helper()
	if !Legal(a.r, ev) {
		return
	}
	before := a.r
	ev.Sequence, ev.OccurredAt = a.r.LastSequence+1, timestamppb.New(t0.Add(time.Duration(a.r.LastSequence)*time.Second))
	a.r, a.q = Fold(a.r, ev), a.q.after(ev)
	a.history = append(a.history, ev)
	if a.r.AwaitsApproval() != a.q.open {
		a.t.Fatalf("it waits for a decision: %v; after %v", a.r.AwaitsApproval(), a.history)
	}
	if answer, _ := a.r.Approval(); !a.q.open && a.r.State == Paused && answer != a.q.answer {
		a.t.Fatalf("the answer is %v; after %v", answer, a.history)
	}
	if a.q.open && (before.State == Paused && a.r.State != Paused && !a.r.Over() || before.Incarnation == nil && a.r.Incarnation != nil) {
		a.t.Fatalf("it goes on although nobody has decided; after %v", a.history)
	}
	if a.q.open && a.r.Pause != nil && a.r.Pause.Woken {
		a.t.Fatalf("it is woken although nobody has decided; after %v", a.history)
	}
	if word := a.r.Word(); a.r.State == Paused && (word == "WAITING_FOR_APPROVAL") != a.q.open {
		a.t.Fatalf("it is shown as %s, and somebody has to decide: %v; after %v", word, a.q.open, a.history)
	} else if a.r.State == Paused && a.r.Pause.Woken && slices.Contains([]string{"IDLE", "SUSPENDED"}, word) {
		a.t.Fatalf("it is woken, and shown as %s; after %v", word, a.history)
	}
	for _, ready := range []bool{true, false} {
		step := Next(a.r, a.seen(), Rules{ReadyStart: ready, Retry: rules().Retry, Budget: rules().Budget, Heartbeat: rules().Heartbeat}, t0.Add(24*time.Hour))
		switch step.Event.GetType() {
		case agboxv1.AgentEventType_AGENT_BEGUN, agboxv1.AgentEventType_AGENT_RESUMED:
			if a.q.open {
				a.t.Fatalf("the next step is %v; after %v", step.Event, a.history)
			}
		}
	}
}

func (a *asking) seen() Seen {
	seen := Seen{Sandbox: SandboxReady, PauseMark: a.r.PauseMark()}
	if a.r.Incarnation != nil {
		seen.Exec = ExecRunning
	}
	return seen
}

func pauseOf(reason agboxv1.PauseReason) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason, Message: reason.String()}}}
}

func wishOf(reason agboxv1.PauseReason) *agboxv1.AgentEvent {
	ev := pauseOf(reason)
	ev.Type = agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED
	return ev
}

func wakeOf(answer agboxv1.AgentApproval) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{Approval: answer}}}
}

// happenings are what can happen to an agent, by name. Each makes its events for the record.
func happenings() map[string]func(*asking) {
	all := map[string]func(*asking){
		"is resumed": func(a *asking) { a.add(wakeOf(0)) },
		"is approved": func(a *asking) {
			if a.q.open {
				a.add(wakeOf(agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED))
			}
		},
		"is denied": func(a *asking) {
			if a.q.open {
				a.add(wakeOf(agboxv1.AgentApproval_AGENT_APPROVAL_DENIED))
			}
		},
		"begins": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: a.r.Incarnations + 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: "e"}}})
		},
		"goes on": func(a *asking) {
			if a.r.State == Paused && a.r.Incarnation != nil {
				a.add(resumed(a.r, a.r.GoesOn(), a.r.PendingObservation()))
			}
		},
		"asks for leases": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_MANIFEST, Observation: a.r.PendingObservation(), Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{}}})
		},
		"is granted": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_GRANTED, Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{}}})
		},
		"has a conflict": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CONFLICT, Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{}}})
		},
		"plans": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: Planning})
		},
		"executes": func(a *asking) {
			a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: Executing})
		},
		"is held":  func(a *asking) { a.add(Opened("client:c", 0)) },
		"is moved": func(a *asking) { a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_MOVED}) },
	}
	for value, name := range agboxv1.PauseReason_name {
		if reason := agboxv1.PauseReason(value); reason != 0 {
			all["is paused for "+name] = func(a *asking) { a.add(pauseOf(reason)) }
			all["is to be paused for "+name] = func(a *asking) { a.add(wishOf(reason)) }
			all["has drained for "+name] = func(a *asking) { a.end(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: reason}) }
		}
	}
	for value, name := range agboxv1.IncarnationEndKind_name {
		all["ends by "+name] = func(a *asking) {
			a.end(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind(value), ExitCode: 1, Spoke: true, ErrorMessage: string(rune('a' + a.r.Crashes))})
		}
	}
	return all
}

// end ends the incarnation, and folds the answer to that.
func (a *asking) end(end *agboxv1.IncarnationEnd) {
	a.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: a.r.Incarnations, Details: &agboxv1.AgentEvent_End{End: end}})
	if a.r.Undecided && a.r.Incarnation == nil && !a.r.Over() {
		a.add(Ending(a.r, rules()))
	}
}

// TestAQuestionOutlastsEachPairOfPauses asks for an approval, and lets any two things happen
// before and after that, in each state.
func TestAQuestionOutlastsEachPairOfPauses(t *testing.T) {
	all := happenings()
	for _, records := range examples(t) {
		for _, r := range records {
			if !r.Exists() || r.Over() || r.Deleted {
				continue
			}
			for first := range all {
				for second := range all {
					for _, asks := range []*agboxv1.AgentEvent{pauseOf(forApproval), wishOf(forApproval)} {
						a := &asking{t: t, r: r, q: question{open: r.AwaitsApproval()}}
						a.q.answer, _ = r.Approval()
						all[first](a)
						if asks.GetType() != agboxv1.AgentEventType_AGENT_PAUSED || !a.r.Undecided {
							a.add(asks)
						}
						all[second](a)
						all[first](a)
					}
				}
			}
		}
	}
}

// TestAQuestionOutlastsAnySequence lets anything happen.
func TestAQuestionOutlastsAnySequence(t *testing.T) {
	all := happenings()
	names := keys(all, nil)
	rapid.Check(t, func(t *rapid.T) {
		a := &asking{t: t}
		a.add(&agboxv1.AgentEvent{AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{SandboxId: "s", Lifetime: agboxv1.AgentLifetime(rapid.IntRange(1, 2).Draw(t, "lifetime"))}}})
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 40).Draw(t, "happenings") {
			all[name](a)
		}
		// Once somebody has decided and nobody else keeps it, it goes on.
		for _, name := range []string{"is approved", "is held", "is resumed", "is resumed", "begins", "goes on"} {
			all[name](a)
		}
		if a.q.open && a.r.State == Paused {
			t.Fatalf("it waits for ever: %+v after %v", a.r, a.history)
		}
	})
}

// TestADenialOutlastsACrash ends the program between the denial and its taking it: the next
// one must not go on as if nothing had been said.
func TestADenialOutlastsACrash(t *testing.T) {
	h := working(t).pauseFor(forApproval)
	h.add(wakeOf(agboxv1.AgentApproval_AGENT_APPROVAL_DENIED)).crash("no").begun()
	if approval, _ := h.r.Approval(); approval != agboxv1.AgentApproval_AGENT_APPROVAL_DENIED || h.r.GoesOn() != Planning {
		t.Errorf("it goes on by %v: %+v", h.r.GoesOn(), h.r.Decision)
	}
}

// TestAnAnsweredQuestionIsNotAskedAgain: a user asks while the end of a drained program is still to
// be answered, so the question is also a wish, and decides before that is carried out.
func TestAnAnsweredQuestionIsNotAskedAgain(t *testing.T) {
	h := working(t).add(wishOf(forRequest)).endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forRequest})
	h.add(wishOf(forApproval)).add(Ending(h.r, rules())).add(wakeOf(agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED))
	if step := Next(h.r, Seen{Sandbox: SandboxReady}, rules(), h.at); step.Do != Rest || h.r.AwaitsApproval() {
		t.Errorf("the next step is %s %v", say(step), step.Event)
	}
	if step := Next(h.add(wakeOf(0)).r, Seen{Sandbox: SandboxReady}, rules(), h.at); say(step) != "AGENT_BEGUN" {
		t.Errorf("resumed, the next step is %s", say(step))
	}
}

// TestAnEarlierDatabaseThatLostAQuestionFindsIt folds what an earlier daemon has written when
// an approval was drained and resumed away.
func TestAnEarlierDatabaseThatLostAQuestionFindsIt(t *testing.T) {
	stream := func(n int) Record {
		h := working(t).pauseFor(forApproval).endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forRequest})
		events := []*agboxv1.AgentEvent{
			pauseOf(forRequest), wakeOf(0),
			{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 2, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: "e"}}},
			{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: Executing, Incarnation: 2},
		}
		for _, ev := range events[:n] {
			ev.Sequence, ev.OccurredAt = h.r.LastSequence+1, timestamppb.New(t0)
			h.r = Fold(h.r, ev)
		}
		return h.r
	}
	for n := range 4 {
		if r := stream(n); r.Word() != "WAITING_FOR_APPROVAL" && n != 0 || !r.AwaitsApproval() || r.Pause.Woken {
			t.Errorf("after %d events it is %s: %+v", n, r.Word(), r.Pause)
		}
	}
	if r := stream(4); r.State != Executing || r.AwaitsApproval() {
		t.Errorf("what went on is %v, and waits: %v", r.State, r.AwaitsApproval())
	}
}
