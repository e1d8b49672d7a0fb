package agents

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// say describes a step in a few words.
func say(s Step) string {
	switch s.Do {
	case Rest:
		if s.Wake.IsZero() {
			return "rest"
		}
		return "rest until " + s.Wake.Sub(t0).String()
	case Emit:
		if s.Event.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
			return "end " + stateWords[s.Event.GetState()]
		}
		return s.Event.GetType().String()
	case Drain:
		return "drain " + s.End.String()[len("INCARNATION_END_KIND_"):] + " " + s.Pause.String()[len("PAUSE_REASON_"):]
	case EndIncarnation:
		return "end-incarnation " + s.End.String()[len("INCARNATION_END_KIND_"):]
	}
	return s.Do.String()
}

func TestNext(t *testing.T) {
	ready := Seen{Sandbox: SandboxReady, Exec: ExecRunning}
	request := func(typ agboxv1.AgentEventType) func(*history) {
		return func(h *history) {
			ev := &agboxv1.AgentEvent{Type: typ}
			switch typ {
			case agboxv1.AgentEventType_AGENT_KILL_REQUESTED:
				ev.Details = &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{}}
			case agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED:
				ev.Details = &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forRequest}}
			case agboxv1.AgentEventType_AGENT_DONE_REPORTED:
				ev.Details = &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE}}
			}
			h.add(ev)
		}
	}
	kill, pause := request(agboxv1.AgentEventType_AGENT_KILL_REQUESTED), request(agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED)
	done, wake := request(agboxv1.AgentEventType_AGENT_DONE_REPORTED), request(agboxv1.AgentEventType_AGENT_WOKEN)
	end := func(e *agboxv1.IncarnationEnd) func(*history) {
		return func(h *history) { h.endWith(e); h.add(Ending(h.r, rules())) }
	}
	fresh := func(h *history) { *h = *spawned(h.t) }
	begun := func(h *history) { *h = *spawned(h.t).begun() }
	all := func(parts ...func(*history)) func(*history) {
		return func(h *history) {
			for _, part := range parts {
				part(h)
			}
		}
	}
	finish := func(h *history) {
		h.endWith(&agboxv1.IncarnationEnd{Kind: exited}).add(ended(Completed, &agboxv1.AgentDone{}))
	}
	crashed := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 1, Spoke: true}
	orphan := &agboxv1.IncarnationEnd{Kind: lost}
	stopped := &agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forDrain}
	declare := func(level string) func(*history) {
		return func(h *history) {
			h.add(&agboxv1.AgentEvent{
				Type: agboxv1.AgentEventType_AGENT_LIVENESS, Incarnation: h.r.Incarnations,
				Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Liveness: agboxv1.AgentLiveness(agboxv1.AgentLiveness_value["AGENT_LIVENESS_"+level])}},
			})
		}
	}
	// failing is a sandbox that failed last at t0, after it had failed for a time.
	failing := func(since time.Duration, also func(*Seen)) Seen {
		s := Seen{Sandbox: SandboxFailed, FailedSince: t0.Add(-since), FailedAt: t0}
		if also != nil {
			also(&s)
		}
		return s
	}
	shared := func(h *history) { h.r.Owned = false }
	stranded := func(h *history) { h.add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_ORPHANED)) }
	wishDrained := func(h *history) { h.add(pauseOf(forDrain)) }
	told := ready
	told.PauseMark = working(t).pauseFor(forApproval).r.PauseMark()
	for _, row := range []struct {
		name   string
		before func(*history)
		seen   Seen
		rules  func(*Rules)
		now    time.Duration
		want   string
	}{
		{"new, own sandbox deleted", fresh, Seen{}, nil, 0, "end FAILED"},
		{"new, sandbox is made", fresh, Seen{Sandbox: SandboxMaking}, nil, 0, "rest"},
		{"new, sandbox ready", fresh, Seen{Sandbox: SandboxReady}, nil, 0, "AGENT_BEGUN"},
		{"new, sandbox stopped", fresh, Seen{Sandbox: SandboxStopped}, nil, 0, "ensure-sandbox"},
		{"new, sandbox failed", fresh, Seen{Sandbox: SandboxFailed}, nil, 0, "end FAILED"},
		{"new, not owned, sandbox failed", func(h *history) { fresh(h); h.r.Owned = false }, Seen{Sandbox: SandboxFailed}, nil, 0, "ensure-sandbox"},
		{"new, breaker open", fresh, Seen{Sandbox: SandboxReady, BreakerOpen: true}, nil, 0, "end FAILED"},
		{"new, killed", all(fresh, kill), Seen{Sandbox: SandboxReady}, nil, 0, "end ABORTED"},
		{"new, not owned, sandbox deleted", func(h *history) { fresh(h); h.r.Owned = false }, Seen{}, nil, 0, "end FAILED"},
		{"begun, not started", begun, Seen{Sandbox: SandboxReady}, nil, 0, "start"},
		{"begun, not started, sandbox lost", begun, Seen{Sandbox: SandboxMaking}, nil, 0, "AGENT_INCARNATION_ENDED"},
		{"begun, not started, killed", all(begun, kill), Seen{Sandbox: SandboxReady}, nil, 0, "AGENT_INCARNATION_ENDED"},
		{"begun, runs, must report", begun, ready, nil, 0, "rest"},
		{"begun, runs, ready at start", begun, ready, func(r *Rules) { r.ReadyStart = true }, 0, "AGENT_PHASE"},
		{"begun, runs, probe not ready", begun, ready, func(r *Rules) { r.Probes.AwaitReady = true }, 0, "rest"},
		{"begun, runs, probe ready", begun, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Ready: true}, func(r *Rules) { r.Probes.AwaitReady = true }, 0, "AGENT_PHASE"},
		{"works", nil, ready, nil, 0, "rest"},
		{"works, beats", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: time.Second}, func(r *Rules) {}, 0, "AGENT_LIVENESS"},
		{"exec ended", nil, Seen{Sandbox: SandboxReady, Exec: ExecEnded}, nil, 0, "collect"},
		{"a short program has ended", begun, Seen{Sandbox: SandboxReady, Exec: ExecEnded, Ran: true}, func(r *Rules) { r.ReadyStart = true }, 0, "AGENT_PHASE"},
		{"a short program has ended, must report", begun, Seen{Sandbox: SandboxReady, Exec: ExecEnded, Ran: true}, nil, 0, "collect"},
		{"a short program has ended, killed", all(begun, kill), Seen{Sandbox: SandboxReady, Exec: ExecEnded, Ran: true}, func(r *Rules) { r.ReadyStart = true }, 0, "collect"},
		{"a program that was never started", begun, Seen{Sandbox: SandboxReady, Exec: ExecEnded}, func(r *Rules) { r.ReadyStart = true }, 0, "collect"},
		{"woken, has ended without the observation", func(h *history) { h.pauseFor(forApproval).woken() }, Seen{Sandbox: SandboxReady, Exec: ExecEnded, Ran: true}, func(r *Rules) { r.ReadyStart = true }, 0, "collect"},
		{"exec ended, killed", kill, Seen{Sandbox: SandboxReady, Exec: ExecEnded}, nil, 0, "collect"},
		{"killed", kill, ready, nil, 0, "kill"},
		{"killed, dying", kill, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Ending: true}, nil, 0, "rest"},
		{"pause wanted", pause, ready, nil, 0, "drain DRAINED REQUEST"},
		{"pause wanted, drains", pause, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Ending: true}, nil, 0, "rest"},
		{"sandbox is to stop, is drained", nil, Seen{Sandbox: SandboxStopping, Exec: ExecRunning, Draining: true}, nil, 0, "rest"},
		{"killed while it is drained", kill, Seen{Sandbox: SandboxStopping, Exec: ExecRunning, Draining: true}, nil, 0, "kill"},
		{"silent while it is drained", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 5 * time.Minute, Draining: true}, nil, 0, "rest"},
		{"sandbox is to stop", nil, Seen{Sandbox: SandboxStopping, Exec: ExecRunning}, nil, 0, "drain DRAINED DRAINED"},
		{"outcome reported", done, ready, nil, 0, "rest until 10s"},
		{"outcome reported, goes on", done, ready, nil, 10 * time.Second, "drain DRAINED UNSPECIFIED"},
		{"budget used up", func(h *history) { h.progress(500_000, 0, 1) }, ready, nil, 0, "drain BUDGET UNSPECIFIED"},
		{"paused", func(h *history) { h.pauseFor(forApproval) }, ready, nil, time.Minute, "tell-pause"},
		{"paused, and told", func(h *history) { h.pauseFor(forApproval) }, told, nil, time.Minute, "rest until 30m0s"},
		{"paused for too long", func(h *history) { h.pauseFor(forApproval) }, told, nil, 30 * time.Minute, "drain DRAINED IDLE"},
		{"a child has ended", func(h *history) {}, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Untold: true, Asked: true}, nil, time.Minute, "tell-children"},
		{"woken", func(h *history) { h.pauseFor(forApproval).woken() }, told, nil, time.Minute, "tell-pause"},
		{"goes on", func(h *history) {
			h.pauseFor(forApproval).woken().add(resumed(h.r, Executing, h.r.PendingObservation()))
		}, told, nil, time.Minute, "tell-pause"},
		{"paused by a conflict", func(h *history) { h.pauseFor(agboxv1.PauseReason_PAUSE_REASON_CONFLICT) }, told, nil, time.Minute, "rest until 30m0s"},
		{"paused before it began", func(h *history) { h.endWith(stopped).pauseFor(forDrain).begun() }, ready, nil, time.Minute, "rest"},
		{"silent, looked at", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 2 * time.Minute}, nil, 0, "AGENT_LIVENESS"},
		{"reports are there", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Unread: true}, nil, 0, "consume"},
		{"reports are there, ready at start", begun, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Unread: true}, func(r *Rules) { r.ReadyStart = true }, 0, "AGENT_PHASE"},
		{"reports are there, dying", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Unread: true, Ending: true}, nil, 0, "consume"},
		{"reports are there, killed", kill, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Unread: true}, nil, 0, "kill"},
		{"silent and hung", declare("CRASHED"), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 91 * time.Second, Hung: true}, nil, 0, "end-incarnation ZOMBIE"},
		{"silent and hung, not declared", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 91 * time.Second, Hung: true}, nil, 0, "AGENT_LIVENESS"},
		{"silent and busy", declare("CRASHED"), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 299 * time.Second}, nil, 0, "rest"},
		{"beats again", declare("ESCALATED"), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: time.Second}, nil, 0, "AGENT_LIVENESS"},
		{"a missing beat is not declared", declare("ACTIVE"), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 40 * time.Second}, nil, 0, "rest"},
		{"silent for five minutes", declare("ZOMBIE"), Seen{Sandbox: SandboxReady, Exec: ExecRunning, Armed: true, Silent: 5 * time.Minute}, nil, 0, "end-incarnation ZOMBIE"},
		{"silence unknown", nil, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Unknown: true, Armed: true, Silent: time.Hour}, nil, 0, "rest"},
		{"context dying", func(h *history) { h.context(agboxv1.AgentContext_AGENT_CONTEXT_DYING) }, ready, nil, 0, "rest"},
		{"context dead", func(h *history) { h.context(contextDead) }, ready, nil, 0, "end-incarnation CONTEXT"},
		{"context dead, outcome reported", all(done, func(h *history) { h.context(contextDead) }), ready, nil, 0, "rest until 10s"},
		{"context was dead, succeeded", all(func(h *history) { h.context(contextDead) }, end(&agboxv1.IncarnationEnd{Kind: context})), Seen{Sandbox: SandboxReady}, nil, 0, "AGENT_BEGUN"},
		{"a call refused for the budget", func(h *history) { h.refuse() }, ready, nil, 0, "drain BUDGET UNSPECIFIED"},
		{"crashed, waits", end(crashed), Seen{Sandbox: SandboxReady}, nil, time.Second, "rest until 5s"},
		{"crashed, due", end(crashed), Seen{Sandbox: SandboxReady}, nil, 5 * time.Second, "AGENT_BEGUN"},
		{"crashed, due, user stopped the sandbox", end(crashed), Seen{Sandbox: SandboxStopped}, nil, time.Minute, "rest"},
		{"crashed, due, sandbox stopped by itself", end(crashed), Seen{Sandbox: SandboxIdle}, nil, time.Minute, "ensure-sandbox"},
		{"crashed, begun again, ready at start", all(end(crashed), func(h *history) { h.begun() }), ready, func(r *Rules) { r.ReadyStart = true }, 0, "AGENT_RESUMED"},
		{"orphaned, revive", end(orphan), Seen{Sandbox: SandboxFailed}, nil, 0, "ensure-sandbox"},
		{"orphaned, the disk is full", end(orphan), failing(time.Hour, func(s *Seen) { s.Full = true }), nil, time.Second, "rest until 1m0s"},
		{"orphaned, the disk was full", end(orphan), failing(time.Hour, func(s *Seen) { s.Full = true }), nil, time.Minute, "ensure-sandbox"},
		{"orphaned, asked for before this failure", end(orphan), failing(0, func(s *Seen) { s.EnsuredAt = t0.Add(-1) }), nil, 0, "ensure-sandbox"},
		{"orphaned, asked for a moment ago", end(orphan), failing(0, func(s *Seen) { s.EnsuredAt = t0.Add(time.Second) }), nil, time.Second, "rest until 6s"},
		{"orphaned, the sandbox failed again", end(orphan), failing(20*time.Second, nil), nil, time.Second, "rest until 20s"},
		{"orphaned, the sandbox fails again and again", end(orphan), failing(strandedAfter, nil), nil, time.Second, "AGENT_PAUSED"},
		{"stranded", all(end(orphan), stranded), failing(10*time.Minute, nil), nil, time.Second, "rest until 10m0s"},
		{"stranded, due", all(end(orphan), stranded), failing(10*time.Minute, nil), nil, 10 * time.Minute, "ensure-sandbox"},
		{"stranded for a day", all(end(orphan), stranded), failing(24*time.Hour, nil), nil, time.Second, "rest until 1h0m0s"},
		{"stranded, the clock was ahead", all(end(orphan), stranded), failing(time.Hour, nil), nil, -time.Second, "ensure-sandbox"},
		{"stranded, revived", all(end(orphan), stranded, wake), failing(time.Hour, nil), nil, time.Second, "ensure-sandbox"},
		{"orphaned, the container of others is gone", all(end(orphan), shared), failing(0, func(s *Seen) { s.Gone = true }), nil, 0, "AGENT_PAUSED"},
		{"stranded, the container of others is gone", all(end(orphan), shared, stranded), failing(0, func(s *Seen) { s.Gone = true }), nil, 24 * time.Hour, "rest"},
		{"stranded, the container of others is gone, revived", all(end(orphan), shared, stranded, wake), failing(0, func(s *Seen) { s.Gone = true }), nil, time.Second, "ensure-sandbox"},
		{"stranded, the container of others is gone, its owner moves", all(end(orphan), shared), failing(0, func(s *Seen) { s.Gone, s.Kept = true, true }), nil, time.Second, "rest"},
		{"lost while it was drained and resumed, ask", all(end(orphan), wishDrained), Seen{Sandbox: SandboxReady}, func(r *Rules) { r.Revival = Ask }, 0, "AGENT_PAUSED"},
		{"lost while it was drained and resumed, reap", all(end(orphan), wishDrained), Seen{Sandbox: SandboxReady}, func(r *Rules) { r.Revival = Reap }, 0, "end ABORTED"},
		{"orphaned, revived, the sandbox fails again and again", all(end(orphan), wake), Seen{Sandbox: SandboxFailed, Ensured: maxEnsured, EnsuredAt: t0}, func(r *Rules) { r.Revival = Ask }, time.Minute, "AGENT_PAUSED"},
		{"drained, the sandbox fails", end(stopped), Seen{Sandbox: SandboxFailed, Ensured: maxEnsured - 1, EnsuredAt: t0}, nil, time.Minute, "ensure-sandbox"},
		{"drained, the sandbox fails again and again", end(stopped), Seen{Sandbox: SandboxFailed, Ensured: maxEnsured, EnsuredAt: t0}, nil, time.Minute, "AGENT_PAUSED"},
		{"drained, the disk is full", end(stopped), Seen{Sandbox: SandboxFailed, Full: true, Ensured: maxEnsured, EnsuredAt: t0}, nil, time.Minute, "ensure-sandbox"},
		{"drained, the container is gone", all(end(stopped), func(h *history) { h.r.Owned = false }), Seen{Sandbox: SandboxFailed, Gone: true}, nil, time.Minute, "ensure-sandbox"},
		{"drained, the container is still gone", all(end(stopped), func(h *history) { h.r.Owned = false }), Seen{Sandbox: SandboxFailed, Gone: true, Ensured: 1, EnsuredAt: t0}, nil, time.Second, "AGENT_PAUSED"},
		{"drained, its own container is gone", end(stopped), Seen{Sandbox: SandboxFailed, Gone: true}, nil, time.Minute, "move"},
		{"drained, its own container is gone, ask", end(stopped), Seen{Sandbox: SandboxFailed, Gone: true}, func(r *Rules) { r.Revival = Ask }, time.Minute, "AGENT_PAUSED"},
		{"orphaned, revived, its own container is gone, ask", all(end(orphan), wake), Seen{Sandbox: SandboxFailed, Gone: true}, func(r *Rules) { r.Revival = Ask }, time.Minute, "move"},
		{"new, not owned, sandbox fails again and again", func(h *history) { fresh(h); h.r.Owned = false }, Seen{Sandbox: SandboxFailed, Ensured: maxEnsured, EnsuredAt: t0}, nil, time.Minute, "end FAILED"},
		{"orphaned, moved, the new sandbox cannot be made", all(end(orphan), func(h *history) { h.add(movedTo("new")) }), Seen{Sandbox: SandboxFailed, Ensured: maxEnsured, EnsuredAt: t0}, nil, time.Minute, "ensure-sandbox"},
		{"orphaned, moved, the new sandbox can never be made", all(end(orphan), func(h *history) { h.add(movedTo("new")) }), Seen{Sandbox: SandboxFailed, Hopeless: true}, nil, 0, "end FAILED"},
		{"orphaned, reap", end(orphan), Seen{Sandbox: SandboxFailed}, func(r *Rules) { r.Revival = Reap }, 0, "end ABORTED"},
		{"orphaned, ask", end(orphan), Seen{Sandbox: SandboxFailed}, func(r *Rules) { r.Revival = Ask }, 0, "rest"},
		{"orphaned, ask, answered", all(end(orphan), wake), Seen{Sandbox: SandboxReady}, func(r *Rules) { r.Revival = Ask }, 0, "AGENT_BEGUN"},
		{"drained, sandbox stopped", end(stopped), Seen{Sandbox: SandboxStopped}, nil, 0, "rest"},
		{"drained, sandbox ready again", end(stopped), Seen{Sandbox: SandboxReady}, nil, 0, "AGENT_BEGUN"},
		{"drained, sandbox deleted", end(stopped), Seen{}, nil, 0, "end FAILED"},
		{"crashed, waits, sandbox deleted", end(crashed), Seen{}, nil, time.Second, "end FAILED"},
		{"orphaned, ask, sandbox deleted", end(orphan), Seen{}, func(r *Rules) { r.Revival = Ask }, 0, "end FAILED"},
		{"sandbox deleted, exec not ended yet", nil, Seen{Exec: ExecRunning}, nil, 0, "rest"},
		{"waits for approval, sandbox deleted", all(func(h *history) { h.pauseFor(forApproval) }, end(stopped)), Seen{}, nil, 0, "end FAILED"},
		{"waits for approval", all(func(h *history) { h.pauseFor(forApproval) }, end(stopped)), Seen{Sandbox: SandboxReady}, nil, 0, "rest"},
		{"over, sandbox stays for a while", finish, Seen{Sandbox: SandboxReady}, nil, time.Minute, "rest until 5m0s"},
		{"over", finish, Seen{Sandbox: SandboxReady}, nil, 5 * time.Minute, "compare-work"},
		{"over, sandbox stopped", finish, Seen{Sandbox: SandboxStopped}, nil, 5 * time.Minute, "compare-work"},
		{"over, sandbox is to stop", finish, Seen{Sandbox: SandboxStopping}, nil, 5 * time.Minute, "rest"},
		{"over, its work is compared", finish, Seen{Sandbox: SandboxReady, Work: WorkCompared}, nil, 5 * time.Minute, "rest"},
		{"over, its work is not home", finish, Seen{Sandbox: SandboxReady, Work: WorkLeft, WorkAgain: t0.Add(time.Hour)}, nil, 5 * time.Minute, "rest until 1h0m0s"},
		{"over, its work is home", finish, Seen{Sandbox: SandboxReady, Work: WorkHome}, nil, 5 * time.Minute, "remove-sandbox"},
		{"over, its work is home, sandbox stays for a while", finish, Seen{Sandbox: SandboxReady, Work: WorkHome}, nil, time.Minute, "rest until 5m0s"},
		{"over, sandbox starts again", finish, Seen{Sandbox: SandboxMaking}, nil, 5 * time.Minute, "rest"},
		{"over before it began, sandbox is made", all(fresh, kill, func(h *history) {
			h.add(Next(h.r, Seen{Sandbox: SandboxMaking}, rules(), t0).Event)
		}), Seen{Sandbox: SandboxMaking}, nil, 5 * time.Minute, "remove-sandbox"},
		{"over before it began, sandbox starts again", all(fresh, kill, func(h *history) {
			h.add(Next(h.r, Seen{Sandbox: SandboxMaking}, rules(), t0).Event)
		}), Seen{Sandbox: SandboxMaking, WasReady: true}, nil, 5 * time.Minute, "rest"},
		{"refused by the breaker", all(fresh, func(h *history) {
			h.add(Next(h.r, Seen{Sandbox: SandboxMaking, BreakerOpen: true}, rules(), t0).Event)
		}), Seen{Sandbox: SandboxMaking}, nil, 0, "remove-sandbox"},
		{"over, nothing left", finish, Seen{}, nil, 5 * time.Minute, "rest"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, r := working(t), rules()
			if row.before != nil {
				row.before(h)
			}
			if row.rules != nil {
				row.rules(&r)
			}
			step := Next(h.r, row.seen, r, t0.Add(row.now))
			if got := say(step); got != row.want {
				t.Errorf("step %q; want %q", got, row.want)
			}
			if step.Do == Emit && !Legal(h.r, step.Event) {
				t.Errorf("the step emits %v, which is not legal", step.Event)
			}
		})
	}
}
