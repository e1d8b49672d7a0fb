package agents

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// world simulates what an agent's verbs act on. The program of an incarnation reports,
// works and dies at random; containers are lost, sandboxes stopped and daemons restarted.
type world struct {
	t       *rapid.T
	r       Record
	rules   Rules
	now     time.Time
	sandbox Sandbox
	work    Work
	// running is the exec that runs, accepted the execs that ever were.
	running  string
	accepted map[string]bool
	// end is how the newest exec ended.
	end *agboxv1.IncarnationEnd
	// draining is the step of a drain under way.
	draining *Step
	beatAt   time.Time
	kin      Kin
	// log has all events.
	log []*agboxv1.AgentEvent
	// told is the mark of the pause that the program was told of.
	told uint64
}

func TestAnyInterleavingComesToALegalRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, rules: rules(), now: t0, sandbox: SandboxMaking, accepted: map[string]bool{}}
		w.rules.ReadyStart = rapid.Bool().Draw(t, "ready at start")
		w.rules.Revival = Revival(rapid.IntRange(0, 2).Draw(t, "revival"))
		w.emit(&agboxv1.AgentEvent{AgentId: "a", Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
			Owned: true, SandboxId: "s", Parent: "p", Lifetime: agboxv1.AgentLifetime(rapid.IntRange(1, 2).Draw(t, "lifetime")),
		}}})
		for range rapid.IntRange(0, 80).Draw(t, "moves") {
			w.interfere()
			for range rapid.IntRange(0, 6).Draw(t, "steps") {
				w.step()
			}
		}
		for range 4096 {
			if !w.step() {
				continue
			}
			if w.settle() {
				return
			}
		}
		t.Fatalf("no rest; record %+v, world %+v", w.r, w)
	})
}

// emit folds an event as the ledger does: only if it is legal.
func (w *world) emit(ev *agboxv1.AgentEvent) bool {
	if !Legal(w.r, ev) {
		return false
	}
	before := w.r
	ev = proto.CloneOf(ev) // a step is applied twice
	ev.Sequence, ev.OccurredAt = w.r.LastSequence+1, timestamppb.New(w.now)
	w.r = Fold(w.r, ev)
	w.log = append(w.log, ev)
	if w.r.Parent != before.Parent {
		w.kin = Kin{}
	}
	switch {
	case before.Over() && w.r.State != before.State:
		w.t.Fatalf("%v changed the end %v into %v", ev, before.State, w.r.State)
	case w.r.Over() && w.r.Incarnation != nil:
		w.t.Fatalf("%v ended an agent with an incarnation", ev)
	case w.r.Context != agboxv1.AgentContext_AGENT_CONTEXT_UNSPECIFIED && w.r.Incarnation == nil:
		w.t.Fatalf("after %v there is a context without an incarnation", ev)
	case w.r.Uncounted > maxUncounted:
		w.t.Fatalf("%v is end %d in a row that does not count", ev, w.r.Uncounted)
	case w.r.Crashes < before.Crashes || w.r.Incarnations < before.Incarnations:
		w.t.Fatalf("%v made a count go down", ev)
	case (w.r.State == Paused) != (w.r.Pause != nil):
		w.t.Fatalf("after %v the state is %v and the pause %v", ev, w.r.State, w.r.Pause)
	}
	return true
}

func (w *world) observe() Seen {
	seen := Seen{Work: w.work, Kin: w.kin, Sandbox: w.sandbox, Ending: w.draining != nil, Silent: w.now.Sub(w.beatAt), Armed: w.beatAt.After(t0), PauseMark: w.told}
	if inc := w.r.Incarnation; inc != nil {
		switch {
		case w.running == inc.ExecID:
			seen.Exec = ExecRunning
		case w.accepted[inc.ExecID]:
			seen.Exec, seen.Ran = ExecEnded, true
		}
	}
	return seen
}

// step executes one step and returns true at rest. Every verb is executed twice, as after
// a crash of the daemon: the second time must change nothing.
func (w *world) step() bool {
	step := Next(w.r, w.observe(), w.rules, w.now)
	for range 2 {
		w.apply(step)
	}
	return step.Do == Rest
}

func (w *world) apply(step Step) {
	switch step.Do {
	case EnsureSandbox:
		if w.sandbox == SandboxMissing {
			w.t.Fatalf("a deleted sandbox was asked for")
		}
		if w.sandbox != SandboxReady {
			w.sandbox = SandboxMaking
		}
	case Start:
		id := w.r.Incarnation.ExecID
		if !w.accepted[id] {
			if w.running != "" {
				w.t.Fatalf("%s is started while %s runs", id, w.running)
			}
			w.accepted[id], w.running, w.end, w.beatAt, w.draining, w.told = true, id, nil, t0, nil, 0
		}
	case Collect:
		if w.r.Incarnation != nil {
			w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: w.r.Incarnation.N, Details: &agboxv1.AgentEvent_End{End: w.end}})
		}
	case Drain:
		w.draining = &step
	case Kill, EndIncarnation:
		w.die(&agboxv1.IncarnationEnd{Kind: step.End, ExitCode: 137, Signal: 9, Spoke: true})
	case CompareWork:
		w.work = WorkHome
	case RemoveSandbox:
		w.sandbox = SandboxMissing
	case TellPause:
		w.told = w.r.PauseMark()
	case Emit:
		w.emit(step.Event)
	}
}

func (w *world) die(end *agboxv1.IncarnationEnd) {
	if w.running != "" {
		w.running, w.end, w.draining = "", end, nil
	}
}

// interfere does one thing that nobody can foresee.
func (w *world) interfere() {
	report := func(ev *agboxv1.AgentEvent) {
		if w.running != "" && w.r.Incarnation != nil && w.r.Incarnation.ExecID == w.running {
			ev.Incarnation = w.r.Incarnation.N
			w.emit(ev)
		}
	}
	switch rapid.IntRange(0, 22).Draw(w.t, "move") {
	case 22: // it was accepted, and the disk of the logs is full
		w.die(&agboxv1.IncarnationEnd{Kind: neverStarted, ErrorMessage: "No room."})
	case 0:
		w.die(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: int32(rapid.SampledFrom([]int{0, 1, 137, 143}).Draw(w.t, "code")), Spoke: true, ErrorMessage: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(w.t, "message")})
	case 1:
		w.die(&agboxv1.IncarnationEnd{Kind: lost})
		if w.sandbox != SandboxMissing {
			w.sandbox = SandboxFailed
		}
	case 2:
		w.beatAt = w.now
	case 3:
		report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: agboxv1.AgentState(rapid.IntRange(1, 6).Draw(w.t, "phase"))})
	case 4:
		report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: Executing})
	case 5:
		report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CHECKPOINT, Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{Seq: w.r.Checkpoint().GetSeq() + 1}}})
	case 6:
		if w.r.Done == nil {
			report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_DONE_REPORTED, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome(rapid.IntRange(1, 3).Draw(w.t, "outcome"))}}})
		}
	case 7:
		w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forApproval}}})
	case 8:
		w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: forRequest}}})
	case 9:
		wake := &agboxv1.AgentWake{Approval: agboxv1.AgentApproval(rapid.IntRange(0, 2).Draw(w.t, "approval"))}
		w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: wake}})
	case 10:
		if rapid.IntRange(0, 9).Draw(w.t, "kill") == 0 {
			w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{}}})
		}
	case 11:
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(w.t, "seconds")) * time.Second)
	case 12:
		if w.sandbox == SandboxReady {
			w.sandbox = SandboxStopping
		}
	case 13:
		w.pass()
	case 14:
		report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{Steps: w.r.Progress.GetSteps() + 1, Total: &agboxv1.AgentUsage{InputTokens: w.r.Consumed().GetInputTokens() + 9000}}}})
	case 15:
		if rapid.IntRange(0, 9).Draw(w.t, "delete") == 0 {
			w.die(&agboxv1.IncarnationEnd{Kind: lost})
			w.sandbox = SandboxMissing
		}
	case 16:
		if word := agboxv1.AgentContext(rapid.IntRange(1, 5).Draw(w.t, "context")); word > w.r.Context { // the journal has no other rows
			report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CONTEXT, Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Context: word}}})
		}
	case 18:
		w.kin = Kin{ParentOver: true, Heir: fmt.Sprint("parent after ", w.r.LastSequence)}
	case 19:
		if rapid.IntRange(0, 9).Draw(w.t, "kill parent") == 0 {
			w.kin = Kin{ParentKill: &agboxv1.AgentKill{Cascade: wholeTree}}
		}
	case 20:
		for _, h := range w.r.Holders {
			w.emit(Closed(h.ID, ""))
		}
	case 21:
		w.open(ClientHolder("c"))
	case 17:
		if rapid.IntRange(0, 2).Draw(w.t, "refuse") == 0 {
			report(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{
				Steps: w.r.Progress.GetSteps(), Total: w.r.Consumed(), Refused: &agboxv1.AgentUsage{InputTokens: 9000},
			}}})
		}
	}
}

// open does what the ledger does when somebody opens a hold.
func (w *world) open(holder string) {
	if w.r.HeldBy(holder) || !w.emit(Opened(holder, 0)) {
		return
	}
	switch {
	case w.r.PauseWanted.GetReason() == agboxv1.PauseReason_PAUSE_REASON_UNHELD:
		w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: agboxv1.PauseReason_PAUSE_REASON_DRAINED}}})
	case w.r.Suspended():
		w.emit(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{}}})
	}
}

// pass lets the sandbox and a drain get on. It returns false if there was nothing to do.
func (w *world) pass() bool {
	switch {
	case w.draining != nil && w.running != "":
		step := *w.draining
		w.die(&agboxv1.IncarnationEnd{Kind: step.End, DrainedFor: step.Pause, Spoke: true})
	case w.sandbox == SandboxMaking:
		w.sandbox = SandboxReady
	case w.sandbox == SandboxStopping && w.running == "":
		w.sandbox = rapid.SampledFrom([]Sandbox{SandboxStopped, SandboxIdle}).Draw(w.t, "stopped")
	default:
		return false
	}
	return true
}

// settle is called at rest. It returns true if the rest is right; otherwise it makes
// happen what the agent waits for.
func (w *world) settle() bool {
	if w.pass() {
		return false
	}
	step := Next(w.r, w.observe(), w.rules, w.now)
	if !step.Wake.IsZero() && !w.r.Over() {
		if !step.Wake.After(w.now) {
			w.t.Fatalf("rests until %v at %v", step.Wake, w.now)
		}
		w.now = step.Wake
		return false
	}
	switch {
	case w.kin.ParentOver && !w.r.Over():
		w.t.Fatalf("it rests although its parent has ended: %+v", w.r)
	case w.r.Over():
		if w.running != "" {
			w.t.Fatalf("over as %v, and %s runs", w.r.State, w.running)
		}
		return true
	case w.running != "": // works, or waits with its process
		if dead := w.r.Context == contextDead || w.r.Progress.GetRefused() != nil; dead && w.draining == nil {
			w.t.Fatalf("it works although it may do nothing more: %+v", w.r)
		}
		if w.r.Unheld() && w.r.Done == nil && w.draining == nil && !(w.r.State == Paused && !w.r.Pause.Woken) {
			w.t.Fatalf("it works although nobody holds it: %+v", w.r)
		}
		if w.r.Kill != nil || w.r.PauseWanted != nil {
			w.t.Fatalf("a wish was not carried out: %+v", w.r)
		}
		return true
	case w.r.State == Paused && (waitsForSomebody(w.r.Pause.Reason) && !w.r.Pause.Woken || w.sandbox == SandboxStopped):
		return true
	case w.r.State == Paused && w.r.Pause.Reason == forOrphan && w.rules.Revival == Ask:
		return true
	}
	w.t.Fatalf("rests although nothing will wake it: %+v, sandbox %v", w.r, w.sandbox)
	return false
}
