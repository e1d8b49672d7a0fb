package agents

import (
	"fmt"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Step is the decision of Next.
type Step struct {
	Do Verb
	// Event is the event for Emit. The ledger fills in ids, sequence and position.
	Event *agboxv1.AgentEvent
	// Pause is the reason for Drain, which becomes that of the pause.
	Pause agboxv1.PauseReason
	// Holder is that of EndHold.
	Holder string
	// End is the kind of end for Drain and EndIncarnation.
	End agboxv1.IncarnationEndKind
	// Wake is when to call Next again even if nothing has changed. Zero means never.
	Wake time.Time
	// Why explains the step in the log.
	Why string
}

// Verb is an action. Each verb is idempotent: executed again after a crash, it finds what
// it did before. None touches the engine: sandboxes are made and stopped by their own
// rounds, and incarnations are execs.
type Verb uint8

// The verbs.
const (
	// Rest: do nothing until something changes or Wake comes.
	Rest Verb = iota
	// EnsureSandbox: ask for the agent's sandbox to be resumed.
	EnsureSandbox
	// Start: give the supervisor the files of the incarnation, then start its exec.
	Start
	// Consume: take over what a running incarnation has reported.
	Consume
	// Collect: take over what an ended incarnation has left, and emit its end.
	Collect
	// Drain: ask the incarnation to save its work and exit, and end it if it does not.
	Drain
	// Kill: end the incarnation as the request says.
	Kill
	// EndIncarnation: end an incarnation that cannot go on.
	EndIncarnation
	// RemoveSandbox: ask for the removal of the sandbox that was made for the agent.
	RemoveSandbox
	// CompareWork: find out whether that sandbox has work that was not brought home.
	CompareWork
	// Emit: append Step.Event.
	Emit
	// EndHold: record that Step.Holder does not hold the agent any more.
	EndHold
	// Answer: decide about what the incarnation asks.
	Answer
	// Signal: tell the agent again what it has not acknowledged.
	Signal
	// Move: make a new sandbox for the agent instead of its own, whose container is gone.
	Move
	// TellPause: tell the incarnation that its agent is paused, or not any more.
	TellPause
	// TellChildren: tell the incarnation what the children have of the budget of its agent.
	TellChildren
	// EndFound: end the process of the newest incarnation, whose loss is recorded.
	EndFound
)

var verbNames = [...]string{"rest", "ensure-sandbox", "start", "consume", "collect", "drain", "kill", "end-incarnation", "remove-sandbox", "compare-work", "emit", "end-hold", "answer", "signal", "move", "tell-pause", "tell-children", "end-found"}

// String returns the verb's name in logs.
func (v Verb) String() string { return verbNames[v] }

// Seen is what is known about an agent besides its record.
type Seen struct {
	Sandbox Sandbox
	// SandboxError says why the sandbox is FAILED, FailedAt is since when, and FailedSince when it
	// failed first without being READY since. Ensured is how often it was asked for because
	// somebody wants the agent to go on, since its last incarnation began or it became ORPHANED.
	// EnsuredAt is when it was asked for last, also without such a wish.
	SandboxError          string
	FailedSince, FailedAt time.Time
	// WasReady means that the sandbox has been READY, so that something may have worked in it.
	WasReady bool
	// Gone means that the container of a FAILED sandbox does not exist any more, so the
	// sandbox cannot be started again.
	Gone bool
	// Full means that it is FAILED because a disk was full, which is no fault of the sandbox.
	// Hopeless means that the sandbox was deleted from which it was to be made.
	Full, Hopeless bool
	// Busy means that other agents have incarnations in it whose ends are not decided about. Kept
	// means that an agent that has not ended owns it, and so gets a new one, to which all move.
	Busy, Kept bool
	Ensured    int
	EnsuredAt  time.Time
	Exec       Exec
	// Ran means that the program of an exec that has ended was started.
	Ran bool
	// Unread means that the incarnation has reported what was not consumed.
	Unread bool
	// Asked means that the incarnation has requests about which nothing was decided in this
	// round.
	Asked bool
	// Spoke means that its program has used the agent socket.
	Spoke bool
	// Shared means that other agents in its sandbox have not ended.
	Shared bool
	// Ready means that the readiness probe of the incarnation succeeds.
	Ready bool
	// Services means that a service still runs that the incarnation must be without.
	Services bool
	// Silent is the time since the last beat, or since the start without one, as the
	// supervisor has told it last. Armed means that there was a beat. Unknown means that the
	// supervisor cannot be asked now.
	Silent  time.Duration
	Armed   bool
	Unknown bool
	// Hung means that the processes of the incarnation exist but do nothing.
	Hung bool
	// Ending means that the supervisor is killing the incarnation. Draining means that it is
	// draining it: it ends at the latest when the time of the drain is over.
	Ending, Draining bool
	// PauseMark is that of the pause of which the incarnation was told.
	PauseMark uint64
	// Untold means that the incarnation does not know what the children have of the budget.
	Untold bool
	// Acknowledged means that the program has taken the message that asks it to end.
	Acknowledged bool
	// Lost is a holder that is gone: an agent that has ended, or a client whose hold has
	// lingered long enough. LostAt is when that of a client will have. Both may be unset.
	Lost   string
	LostAt time.Time
	// Signal is when the agent was told last of a message about another agent that it has not
	// acknowledged; of several, the longest ago. It is zero if there is none.
	Signal time.Time
	// BreakerOpen means that the breaker of the class refuses to begin new agents.
	BreakerOpen bool
	// Found means that the exec of its newest incarnation runs although its end is recorded: its
	// container was missing, and is back. Unsought means that this may still turn out.
	Found, Unsought bool
	// Work is what is known about the work in the own sandbox of an agent that is over. WorkAgain is
	// when to compare it again.
	Work      Work
	WorkAgain time.Time
	// Kin is what is known about its parent and the agents that it is to follow.
	Kin Kin
}

// Sandbox is the state of the agent's sandbox as far as it matters to the agent.
type Sandbox uint8

// The states of the sandbox.
const (
	// SandboxMissing: there is none, or it is being deleted.
	SandboxMissing Sandbox = iota
	// SandboxMaking: it is PENDING.
	SandboxMaking
	// SandboxReady: it is READY and its supervisor is linked, or was and will be again.
	SandboxReady
	// SandboxStopping: a stop or deletion was requested. Incarnations are drained first.
	SandboxStopping
	// SandboxStopped: a user has stopped it.
	SandboxStopped
	// SandboxIdle: it was stopped because nothing ran.
	SandboxIdle
	// SandboxFailed: it is FAILED.
	SandboxFailed
)

// Exec is the state of the exec of the current incarnation.
type Exec uint8

// The states of the exec.
const (
	// ExecUnknown: it was never accepted.
	ExecUnknown Exec = iota
	// ExecRunning: it was accepted and has not ended, as far as is known.
	ExecRunning
	// ExecEnded: its end is recorded.
	ExecEnded
)

// Work says whether the sandbox that was made for an agent has work in its workspace that was
// not brought home.
type Work uint8

// What is known about the work.
const (
	// WorkUnknown: it must be compared.
	WorkUnknown Work = iota
	// WorkCompared: it is being compared.
	WorkCompared
	// WorkHome: there is none.
	WorkHome
	// WorkLeft: there is some, or it cannot be compared now.
	WorkLeft
)

// ExecID is the id of an incarnation's exec. A daemon that crashed between two steps
// derives the same id again, and an exec id is run at most once.
func ExecID(agentID string, incarnation uint32) string {
	return fmt.Sprintf("agent-%s-%d", agentID, incarnation)
}

// OfExec returns the agent whose incarnation has an exec id; ok is false if the id is none of
// ExecID. Users may choose such ids too.
func OfExec(execID string) (agentID string, ok bool) {
	rest, ok := strings.CutPrefix(execID, "agent-")
	end := strings.LastIndexByte(rest, '-')
	if !ok || end <= 0 {
		return "", false
	}
	return rest[:end], true
}

func emit(event *agboxv1.AgentEvent, why string) Step { return Step{Do: Emit, Event: event, Why: why} }
