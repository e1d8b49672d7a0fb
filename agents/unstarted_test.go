package agents

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAStartThatCannotBeWrittenDownCountsNowhere: the disk of the logs is full. That is no
// crash of the program, however often it happens, and is tried again more and more seldom.
func TestAStartThatCannotBeWrittenDownCountsNowhere(t *testing.T) {
	full := &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED, ErrorMessage: "No room."}
	crash := &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 9}
	ready := Seen{Sandbox: SandboxReady}
	crashed := working(t).endWith(crash)
	crashed.add(Ending(crashed.r, rules()))
	crashed.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN})
	for name, h := range map[string]*history{"a new agent": spawned(t), "one that returns": crashed} {
		crashes, state := h.r.Crashes, h.r.State
		for try, pause := range []time.Duration{5, 10, 20, 40, 60, 60, 60} {
			h.begun().endWith(full)
			pause *= time.Second
			if h.r.Crashes != crashes || h.r.State != state || h.r.Undecided || h.r.Incarnation != nil || h.r.UnstartedWhy != "No room." {
				t.Fatalf("%s is %+v after try %d", name, h.r, try)
			}
			if got := Next(h.r, ready, rules(), h.at); got.Do != Rest || !got.Wake.Equal(h.at.Add(pause)) {
				t.Errorf("%s, try %d: the next step is %s, want a pause of %v", name, try, say(got), pause)
			}
			h.at = h.at.Add(pause)
			if got := say(Next(h.r, ready, rules(), h.at)); got != "AGENT_BEGUN" {
				t.Errorf("%s, try %d: after the pause the step is %s", name, try, got)
			}
		}
		h.begun().endWith(crash)
		if h.r.Unstarted != 0 || !h.r.Undecided {
			t.Errorf("%s: what ran is %+v", name, h.r)
		}
	}
	// One whose sandbox is not ready any more waits for that, and for nothing else.
	h := spawned(t).begun().endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED})
	if got := say(Next(h.r, ready, rules(), h.at)); got != "AGENT_BEGUN" {
		t.Errorf("the step is %s", got)
	}
}

// TestAnAgentThatEnteredBeforeItsStartFailedBeginsAnew: its exec was accepted, so it counted as
// running, and then the disk of the logs turned out to be full.
func TestAnAgentThatEnteredBeforeItsStartFailedBeginsAnew(t *testing.T) {
	full := &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED, ErrorMessage: "No room."}
	atOnce := rules()
	atOnce.ReadyStart = true
	crashed := working(t).endWith(&agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 9})
	crashed.add(Ending(crashed.r, rules()))
	for name, h := range map[string]*history{"a new agent": spawned(t), "one that returns": crashed} {
		crashes, uncounted := h.r.Crashes, h.r.Uncounted
		for try := range 8 {
			h.begun()
			for Enters(h.r, Seen{Exec: ExecRunning}, atOnce) {
				h.add(entered(h.r, Seen{Exec: ExecRunning}, atOnce))
			}
			if h.r.State != Executing {
				t.Fatalf("%s, try %d: it is %v once its exec is accepted", name, try, h.r.State)
			}
			h.endWith(full)
			step := Next(h.r, Seen{Sandbox: SandboxReady}, atOnce, h.at)
			h.add(step.Event)
			if h.r.State != Paused || h.r.Crashes != crashes || h.r.Uncounted != uncounted || h.r.Pause.Message != "No room." {
				t.Fatalf("%s, try %d: after %s it is %+v", name, try, say(step), h.r)
			}
			step = Next(h.r, Seen{Sandbox: SandboxReady}, atOnce, h.at)
			if step.Do != Rest || step.Wake.IsZero() {
				t.Fatalf("%s, try %d: it does not wait for room: %s", name, try, say(step))
			}
			h.at = step.Wake
			if got := say(Next(h.r, Seen{Sandbox: SandboxReady}, atOnce, h.at)); got != "AGENT_BEGUN" {
				t.Errorf("%s, try %d: after the pause the step is %s", name, try, got)
			}
		}
	}
	// An end that somebody wants comes first.
	h := spawned(t).begun()
	h.add(entered(h.r, Seen{Exec: ExecRunning}, atOnce)).endWith(full)
	h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{}}})
	if got := say(Next(h.r, Seen{Sandbox: SandboxReady}, atOnce, h.at)); got != "end ABORTED" {
		t.Errorf("the step of one that is killed is %s", got)
	}
}
