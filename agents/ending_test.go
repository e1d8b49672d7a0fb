package agents

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Short names for the tables of this file.
const (
	exited       = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
	neverStarted = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED
	drained      = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
	killed       = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED
	lost         = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST
	livelock     = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LIVENESS
	startup      = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP
	zombie       = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE
	context      = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT
	budget       = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET

	contextDead = agboxv1.AgentContext_AGENT_CONTEXT_DEAD

	forCrash    = agboxv1.PauseReason_PAUSE_REASON_CRASH
	forDrain    = agboxv1.PauseReason_PAUSE_REASON_DRAINED
	forRequest  = agboxv1.PauseReason_PAUSE_REASON_REQUEST
	forApproval = agboxv1.PauseReason_PAUSE_REASON_APPROVAL
	forOrphan   = agboxv1.PauseReason_PAUSE_REASON_ORPHANED
	forNext     = agboxv1.PauseReason_PAUSE_REASON_SUCCESSION
)

// rules are the defaults of AgentSpec.
func rules() Rules {
	return Rules{
		Retry: RetryRules{
			Attempts: 5, SameError: 3, OOM: 2,
			Delays: []time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute},
		},
		Budget:      Budget{InputTokens: 500_000, CostMicroUSD: 5_000_000},
		Heartbeat:   HeartbeatRules{Interval: 15 * time.Second, Stale: 30 * time.Second, Escalate: 45 * time.Second, Crashed: 90 * time.Second, Zombie: 5 * time.Minute},
		IdleTimeout: 30 * time.Minute, CleanupAfter: 5 * time.Minute,
	}
}

// answer describes the event that answers an end in a few words.
func answer(ev *agboxv1.AgentEvent) string {
	if p := ev.GetPause(); p != nil {
		word := strings.TrimPrefix(p.GetReason().String(), "PAUSE_REASON_")
		if p.GetAttempt() > 0 {
			word += fmt.Sprintf(" attempt %d %s", p.GetAttempt(), p.GetStrategy())
		}
		return word
	}
	return stateWords[ev.GetState()]
}

func TestWhatTheEndOfAnIncarnationMeans(t *testing.T) {
	done := func(outcome agboxv1.AgentOutcome) func(*history) {
		return func(h *history) {
			h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_DONE_REPORTED, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: outcome}}})
		}
	}
	kill := func(h *history) {
		h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{By: "me"}}})
	}
	spent := func(h *history) { h.progress(500_000, 0, 1) }
	start := func(r *Rules) { r.ReadyStart = true }
	crash, oom := "CRASH attempt 1 escalating_backoff", "CRASH attempt 1 reduced_footprint"
	for _, row := range []struct {
		name   string
		before func(*history)
		end    *agboxv1.IncarnationEnd
		rules  func(*Rules)
		want   string
	}{
		{"completed", done(agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE), &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true}, nil, "COMPLETED"},
		{"completed while drained", done(agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE), &agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forDrain, Spoke: true}, nil, "COMPLETED"},
		{"gave up", done(agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT), &agboxv1.IncarnationEnd{Kind: exited, Spoke: true}, nil, "ABORTED"},
		{"failed", done(agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL), &agboxv1.IncarnationEnd{Kind: exited, Spoke: true}, nil, "FAILED"},
		{"killed on request", kill, &agboxv1.IncarnationEnd{Kind: killed, ExitCode: 137, Signal: 9, Spoke: true}, nil, "ABORTED"},
		{"killed, but had completed", func(h *history) { done(agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE)(h); kill(h) }, &agboxv1.IncarnationEnd{Kind: killed, Spoke: true}, nil, "COMPLETED"},
		{"budget used up", spent, &agboxv1.IncarnationEnd{Kind: budget, Spoke: true}, nil, "FAILED"},
		{"budget used up, crashed", spent, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true}, nil, "FAILED"},
		{"drained for a stop", nil, &agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forDrain, ExitCode: 137, Signal: 9, Spoke: true}, nil, "DRAINED"},
		{"drained on request", nil, &agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forRequest, Spoke: true}, nil, "REQUEST"},
		{"143 from outside", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143, Spoke: true}, nil, "DRAINED"},
		{"TERM from outside", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143, Signal: 15, Spoke: true}, nil, "DRAINED"},
		{"0, never spoke, ready at start", nil, &agboxv1.IncarnationEnd{Kind: exited}, start, "COMPLETED"},
		{"0, never spoke, must report", nil, &agboxv1.IncarnationEnd{Kind: exited}, nil, crash},
		{"0, spoke, ready at start", nil, &agboxv1.IncarnationEnd{Kind: exited, Spoke: true}, start, crash},
		{"context dead", nil, &agboxv1.IncarnationEnd{Kind: context, ExitCode: 137, Signal: 9, Spoke: true}, nil, "SUCCESSION"},
		{"liveness probe", nil, &agboxv1.IncarnationEnd{Kind: livelock, ExitCode: 137, Signal: 9, Spoke: true}, nil, crash},
		{"startup", nil, &agboxv1.IncarnationEnd{Kind: startup, ExitCode: 137, Signal: 9}, nil, crash},
		{"zombie", nil, &agboxv1.IncarnationEnd{Kind: zombie, ExitCode: 137, Signal: 9, Spoke: true}, nil, crash},
		{"137, out of memory", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9, OomKilled: true, Spoke: true}, nil, oom},
		{"137 from outside", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9, Spoke: true}, nil, oom},
		{"other code", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true}, nil, crash},
		{"other signal", nil, &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 139, Signal: 11, Spoke: true}, nil, crash},
		{"container out of memory", nil, &agboxv1.IncarnationEnd{Kind: lost, OomKilled: true}, nil, oom},
		{"container, engine or host lost", nil, &agboxv1.IncarnationEnd{Kind: lost}, nil, "ORPHANED"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, r := working(t), rules()
			if row.before != nil {
				row.before(h)
			}
			if row.rules != nil {
				row.rules(&r)
			}
			h.endWith(row.end)
			ev := Ending(h.r, r)
			if got := answer(ev); got != row.want {
				t.Errorf("it means %s; want %s", got, row.want)
			}
			h.add(ev)
			if h.r.Undecided {
				t.Error("the answer left it undecided")
			}
		})
	}
}

func TestDelaysAfterCrashes(t *testing.T) {
	h := working(t)
	for i, want := range []time.Duration{5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute} {
		h.at = h.at.Add(time.Hour)
		h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: strings.Repeat("x", i+1)})
		ev := Ending(h.r, rules())
		if got := ev.GetPause().GetWakeAt().AsTime().Sub(h.at); got != want || ev.GetPause().GetAttempt() != uint32(i+1) {
			t.Fatalf("after crash %d it is %s, retried after %v; want %v", i+1, answer(ev), got, want)
		}
		h.add(ev).begun()
	}
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: "xxxxx"})
	if got := answer(Ending(h.r, rules())); got != "DEAD_LETTER" {
		t.Errorf("the fifth crash means %s", got)
	}
}

func TestTheSameErrorThreeTimesIsNotRetried(t *testing.T) {
	h := working(t).crash("no such file 17 at 0xdeadbeef").begun().crash("no such file 4 at 0xc0de").begun()
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: "no such file 99 at 0x1"})
	ev := Ending(h.r, rules())
	if ev.GetState() != DeadLetter || !strings.HasPrefix(ev.GetDone().GetMessage(), "Deterministic crash: same error on 3 attempts") {
		t.Errorf("three equal errors mean %s: %s", answer(ev), ev.GetDone().GetMessage())
	}
	other := working(t).crash("one").begun().crash("two").begun()
	other.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: "two"})
	if got := answer(Ending(other.r, rules())); got != "CRASH attempt 3 escalating_backoff" {
		t.Errorf("two equal errors of three mean %s", got)
	}
}

func TestMemoryThatRunsOutTwiceIsNotRetried(t *testing.T) {
	oom := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9, OomKilled: true, Spoke: true}
	h := working(t).endWith(oom)
	h.add(Ending(h.r, rules())).begun().endWith(oom)
	if got := answer(Ending(h.r, rules())); got != "DEAD_LETTER" {
		t.Errorf("running out of memory twice means %s", got)
	}
	mixed := working(t).crash("no").begun().endWith(oom)
	mixed.add(Ending(mixed.r, rules())).begun().endWith(oom)
	if got := answer(Ending(mixed.r, rules())); got != "CRASH attempt 3 reduced_footprint" {
		t.Errorf("a crash and running out of memory twice mean %s", got)
	}
}

func TestTheSentenceOfAnExhaustedBudget(t *testing.T) {
	h := working(t).crash("one").begun().crash("two").begun().progress(1000, 5_100_000, 1)
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true, ErrorMessage: "three"})
	ev := Ending(h.r, rules())
	want := "Job failed: token budget exhausted ($5.10 / $5.00 max). 2 crash-recovery cycles consumed tokens without completing the job. Manual intervention required."
	if ev.GetState() != Failed || ev.GetDone().GetMessage() != want {
		t.Errorf("it means %s: %s\nwant: %s", answer(ev), ev.GetDone().GetMessage(), want)
	}
}

func TestACallThatTheBudgetDoesNotAdmitEndsTheAgent(t *testing.T) {
	h := working(t).crash("one").begun().refuse()
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143, Signal: 15, Spoke: true})
	ev := Ending(h.r, rules())
	want := "Job failed: token budget exhausted ($4.85 / $5.00 max). 1 crash-recovery cycle consumed tokens without completing the job. Manual intervention required."
	if ev.GetState() != Failed || ev.GetDone().GetMessage() != want || ev.GetDone().GetErrorCode() != "BUDGET_EXHAUSTED" {
		t.Errorf("it means %s: %s\nwant: %s", answer(ev), ev.GetDone().GetMessage(), want)
	}
}

func TestSuccessorsBeginWithAHealthyContextAndAreLimited(t *testing.T) {
	h := working(t)
	for i := range maxUncounted {
		h.context(contextDead).endWith(&agboxv1.IncarnationEnd{Kind: context, ExitCode: 143, Spoke: true})
		ev := Ending(h.r, rules())
		if got := answer(ev); got != "SUCCESSION" || h.r.Context != 0 {
			t.Fatalf("succession %d means %s, and the context without an incarnation is %s", i+1, got, h.r.Context)
		}
		h.add(ev)
		if step := Next(h.r, Seen{Sandbox: SandboxReady}, rules(), t0); say(step) != "AGENT_BEGUN" {
			t.Fatalf("succession %d: the next step is %s", i+1, say(step))
		}
		if h.begun(); h.r.Context != agboxv1.AgentContext_AGENT_CONTEXT_HEALTHY || h.r.Crashes != 0 {
			t.Fatalf("successor %d has the context %s after %d crashes", i+1, h.r.Context, h.r.Crashes)
		}
	}
	h.endWith(&agboxv1.IncarnationEnd{Kind: context, ExitCode: 143, Spoke: true})
	if ev := Ending(h.r, rules()); answer(ev) != "CRASH attempt 1 escalating_backoff" || ev.GetPause().GetMessage() != "Its context was used up again and again without progress." {
		t.Errorf("succession %d without progress means %s: %s", maxUncounted+1, answer(ev), ev.GetPause().GetMessage())
	}
}

func TestEndsThatAreNoCrashesAreLimitedWithoutProgress(t *testing.T) {
	loss := &agboxv1.IncarnationEnd{Kind: lost}
	h := working(t)
	for range maxUncounted {
		h.endWith(loss)
		if got := answer(Ending(h.r, rules())); got != "ORPHANED" {
			t.Fatalf("after %d losses it is %s", h.r.Uncounted, got)
		}
		h.add(Ending(h.r, rules())).begun()
	}
	h.endWith(loss)
	if got := answer(Ending(h.r, rules())); got != "CRASH attempt 1 escalating_backoff" {
		t.Errorf("the loss after %d without progress means %s", maxUncounted, got)
	}
	progress := working(t)
	for i := range 3 * maxUncounted {
		progress.endWith(loss)
		progress.add(Ending(progress.r, rules())).begun().progress(1, 1, uint64(i+1))
	}
	if progress.r.Crashes != 0 {
		t.Error("losses with progress in between were counted as crashes")
	}
	stops := working(t)
	for range 3 * maxUncounted {
		stops.endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forDrain})
		stops.add(Ending(stops.r, rules())).begun()
	}
	if stops.r.Crashes != 0 {
		t.Error("drains that agbox made were counted as crashes")
	}
}

func TestAnAgentGoesOnWaitingWhenItsIncarnationEnds(t *testing.T) {
	h := working(t).pauseFor(forApproval)
	h.endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: agboxv1.PauseReason_PAUSE_REASON_IDLE})
	h.add(Ending(h.r, rules()))
	if h.r.Word() != "WAITING_FOR_APPROVAL" || h.r.Undecided {
		t.Errorf("after an idle drain it is %s", h.r.Word())
	}
	crashed := working(t).pauseFor(forApproval).crash("no")
	if crashed.r.Word() != "WAITING_FOR_APPROVAL" || crashed.r.Crashes != 1 {
		t.Errorf("after a crash it is %s with %d crashes", crashed.r.Word(), crashed.r.Crashes)
	}
}

func TestWhatTheSuccessorIsToldOfAnEnd(t *testing.T) {
	for _, row := range []struct {
		name string
		end  *agboxv1.IncarnationEnd
		want int32
	}{
		{"a drain that took too long", &agboxv1.IncarnationEnd{Kind: drained, ExitCode: 137, Signal: 9}, 143},
		{"the context", &agboxv1.IncarnationEnd{Kind: context, ExitCode: 137, Signal: 9}, 143},
		{"a kill", &agboxv1.IncarnationEnd{Kind: killed, ExitCode: 137, Signal: 9}, 143},
		{"the container", &agboxv1.IncarnationEnd{Kind: lost, ExitCode: 137, Signal: 9}, 143},
		{"the liveness probe", &agboxv1.IncarnationEnd{Kind: livelock, ExitCode: 137, Signal: 9}, 1},
		{"no start in time", &agboxv1.IncarnationEnd{Kind: startup, ExitCode: 137, Signal: 9}, 1},
		{"silence", &agboxv1.IncarnationEnd{Kind: zombie, ExitCode: 137, Signal: 9}, 1},
		{"memory in a drain", &agboxv1.IncarnationEnd{Kind: drained, ExitCode: 137, Signal: 9, OomKilled: true}, 137},
		{"SIGKILL from elsewhere", &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9}, 137},
		{"a drain in time", &agboxv1.IncarnationEnd{Kind: drained}, 0},
	} {
		told := Told(row.end)
		if told.GetExitCode() != row.want || row.want != 137 && told.GetSignal() == 9 || row.want != row.end.GetExitCode() && row.end.GetSignal() != 9 {
			t.Errorf("%s: it is told %v; want %d", row.name, told, row.want)
		}
	}
}

func TestTheHistoryHasTheCrashesAndNothingElse(t *testing.T) {
	h := working(t)
	for n := range uint32(KeptCrashes + 2) {
		h.endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forDrain, ExitCode: 137, Signal: 9})
		h.add(Ending(h.r, rules()))
		h.begun()
		h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: int32(n), ErrorMessage: "no", ErrorStack: "long"})
		pause := paused(h.r, forCrash, "no")
		pause.GetPause().Attempt = n + 1
		h.add(pause)
		h.begun()
	}
	if len(h.r.History) != KeptCrashes {
		t.Fatalf("%d crashes are kept", len(h.r.History))
	}
	for i, crash := range h.r.History {
		if n := int32(i + 2); crash.GetExitCode() != n || crash.GetAttempt() != uint32(n)+1 || crash.GetEndedAt() == nil || crash.GetErrorStack() != "" {
			t.Errorf("number %d is %v", i, crash)
		}
	}
	if h.r.Last.GetErrorStack() != "long" || h.r.Last.GetAttempt() != 0 {
		t.Errorf("the last end is %v", h.r.Last)
	}
}

func TestAProgramSaysWhenToTryAgain(t *testing.T) {
	h := working(t)
	limited := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, ErrorMessage: "rate limited", RetryAfter: durationpb.New(30 * time.Second)}
	for n := range uint32(4) {
		h.endWith(limited)
		ev := Ending(h.r, rules())
		if wait := ev.GetPause().GetWakeAt().AsTime().Sub(h.r.LastAt); answer(ev) != fmt.Sprintf("CRASH attempt %d escalating_backoff", n+1) || wait != 30*time.Second {
			t.Fatalf("crash %d means %s, and %v until the next", n+1, answer(ev), wait)
		}
		h.add(ev)
		h.begun()
	}
	h.endWith(limited)
	if ev := Ending(h.r, rules()); answer(ev) != "DEAD_LETTER" {
		t.Errorf("crash 5 means %s", answer(ev))
	}
}
