// Package agents has the rules of an agent's life as pure functions: Fold computes a record
// from events, Ending decides what the end of an incarnation means, and Next decides what
// to do about an observation. It performs no I/O and does not read the clock.
//
// There is one way to stop and one way to come back. Every halt that is not the end is
// PAUSED with a reason, and the reason says who wakes the agent. Every return is a new
// incarnation, or the old one, that goes on from the newest checkpoint.
//
// The loss of a container, an engine or a host is no crash, and neither is SIGTERM from
// outside; but the sixth in a row without progress is one.
package agents

import (
	"cmp"
	"slices"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Init is the id and the name of the agent at the root of the tree. It never runs and
// never ends; its events have the circuit breakers of all classes.
const Init = "init"

// Short names for the states, which this package uses everywhere.
const (
	Pending    = agboxv1.AgentState_AGENT_STATE_PENDING
	Planning   = agboxv1.AgentState_AGENT_STATE_PLANNING
	Acquiring  = agboxv1.AgentState_AGENT_STATE_ACQUIRING
	Executing  = agboxv1.AgentState_AGENT_STATE_EXECUTING
	Paused     = agboxv1.AgentState_AGENT_STATE_PAUSED
	Verifying  = agboxv1.AgentState_AGENT_STATE_VERIFYING
	Completed  = agboxv1.AgentState_AGENT_STATE_COMPLETED
	Aborted    = agboxv1.AgentState_AGENT_STATE_ABORTED
	Failed     = agboxv1.AgentState_AGENT_STATE_FAILED
	DeadLetter = agboxv1.AgentState_AGENT_STATE_DEAD_LETTER
)

// Record is the state of an agent according to its events. It is a value: Fold returns a
// new one and never changes its argument, so a Record may be read without a lock.
type Record struct {
	ID string
	// Name is the user's name for the agent.
	Name string
	// Class groups agents for the circuit breaker and for defaults. It may be empty.
	Class string
	// Parent is the id of the agent that spawned it, or Init, or of the one that adopted it.
	Parent string
	// Origin is the id of the agent that spawned it, or Init.
	Origin string
	// Depth is 1 for an agent that a user has spawned, and 1 more than that of its parent for
	// one that an agent has spawned. Adoption does not change it.
	Depth uint32
	// Stack is the name of the stack that it is in, or empty. StackRoots has the borders that it
	// is within, outermost first: SandboxBorder or Everywhere, then the ids of the roots of all
	// stacks that it is in. Adoption does not change them.
	Stack      string
	StackRoots []string
	// Borderless means that it was spawned before sandboxes were borders. GiveBorders finds the
	// border that it is within.
	Borderless bool
	// Reach is what the request to spawn it said about its border. A repeated one says the same.
	Reach string
	// Tree is the id of the agent at the top of its tree when it was spawned. Adoption does not
	// change it. It is empty for an agent that an older daemon has spawned.
	Tree string
	// SandboxID is where its incarnations run. An owned sandbox was made for the agent.
	SandboxID string
	Owned     bool
	// Settled means that an incarnation has begun in that sandbox.
	Settled bool
	// Moves are the sandboxes in which its incarnations ran before, oldest first: the newest
	// KeptMoves.
	Moves []Stay
	// FromAgent and FromCheckpoint are the work that it continues; "" and 0 if none.
	FromAgent      string
	FromCheckpoint uint64
	// After are the agents that must be COMPLETED before it begins.
	After []string

	State agboxv1.AgentState
	// Position is that of its first event among the events of all agents: its age, which
	// no clock can change.
	Position                           uint64
	CreatedAt, StateChangedAt, EndedAt time.Time
	// LastSequence is the sequence of the newest folded event.
	LastSequence uint64
	// Deleted means that the agent is gone, and its id and name are all that stays.
	Deleted bool

	// Incarnation is the one that has begun and not ended, or nil.
	Incarnation *Incarnation
	// Incarnations is the number of those that have begun.
	Incarnations uint32
	// Last is the end of the newest incarnation that has ended, or nil. LastAt is when.
	Last   *agboxv1.IncarnationEnd
	LastAt time.Time
	// Undecided means that Last has not been answered yet by a pause or an end.
	Undecided bool

	// Pause is set while State is PAUSED. Away is how things were when it became so, at
	// AwaySince, by the event at the position AwayFrom; it is nil if that is not known.
	Pause     *Pause
	Away      *agboxv1.AgentPicture
	AwaySince time.Time
	AwayFrom  uint64
	// AwayAt is the sequence of that event.
	AwayAt uint64
	// Digested means that its newest checkpoint is the digest of a pause that has begun since it
	// went on last, or that is about to.
	Digested bool
	// Decision is what somebody was asked to decide before it goes on, or nil.
	Decision *Decision
	// Loss says how its program was lost with its container, or why the sandbox in which it was
	// to go on cannot be started. No other pause takes it away: it is there until an incarnation
	// begins, or somebody has decided that one may. It is empty if nothing was lost.
	Loss string
	// PauseWanted is a wish for a pause that has not happened yet, or nil.
	PauseWanted *agboxv1.AgentPause
	// Kill is the wish to end the agent, or nil. KillAt is when it was recorded.
	Kill   *agboxv1.AgentKill
	KillAt time.Time
	// Done is the reported outcome, and DoneAt when it was recorded first. After the end it is
	// the outcome that was decided.
	Done   *agboxv1.AgentDone
	DoneAt time.Time

	// Crashes counts the crashes of the program. OOMs counts those among them that are retried
	// as a lack of memory, KernelOOMs those that the kernel reported. Errors has the folded
	// messages of the last three, oldest first.
	Crashes, OOMs, KernelOOMs uint32
	Errors                    []string
	// History has the ends that were crashes, oldest first, at most KeptCrashes, without stacks.
	History []*agboxv1.IncarnationEnd
	// Uncounted is the number of ends in a row that were no crashes, without a new
	// checkpoint or step in between.
	Uncounted uint32
	// Unstarted is the number of incarnations in a row whose start agbox could not write down,
	// and UnstartedAt and UnstartedWhy when and why it was the last time. They count nowhere else.
	Unstarted    uint32
	UnstartedAt  time.Time
	UnstartedWhy string
	// Strategy is how the next or current incarnation differs from the first.
	Strategy string

	// Progress has the newest totals, or is nil. ProgressAt is the sequence of their event, if
	// that is of the current incarnation, else 0.
	Progress   *agboxv1.AgentProgress
	ProgressAt uint64
	// FormerChildren has what children that were removed have used, or is nil. FormerChildrenAt
	// is the sequence of its event.
	FormerChildren   *agboxv1.AgentFormerChildren
	FormerChildrenAt uint64
	// Checkpoints are the newest ones, at most KeptCheckpoints, oldest first. CheckpointEvents has
	// the sequences of their events, 0 for one that the agent was spawned with.
	Checkpoints      []*agboxv1.AgentCheckpoint
	CheckpointEvents []uint64
	// Context and Liveness are the newest declared gauges of the current incarnation.
	Context  agboxv1.AgentContext
	Liveness agboxv1.AgentLiveness

	// Streams are those of which it gets all messages, in alphabetical order.
	Streams []string

	// Held means that it goes on only while it has Holders: agents and clients.
	Held    bool
	Holders []Holder
	// Holds are its leases. Wants is the manifest that it has asked for and not got, and Queued
	// its place in the queue if it waits for that. LeasedAt is when that changed last, by the
	// event with the sequence LeaseSeq.
	Holds    []lease.Hold
	Wants    []lease.Claim
	Queued   uint64
	LeasedAt time.Time
	LeaseSeq uint64

	// Breakers has the circuit breakers by class. Only Init has any.
	Breakers map[string]Breaker
}

// Stay says in which sandbox the incarnations from First to Last ran.
type Stay struct {
	First, Last uint32
	SandboxID   string
}

// Incarnation is one run of the agent's program: an exec.
type Incarnation struct {
	// N counts from 1.
	N         uint32
	ExecID    string
	SandboxID string
	BegunAt   time.Time
	// Attempt is the number of crashes before it, plus 1.
	Attempt uint32
	// Checkpoint is the one that it was given, or 0.
	Checkpoint uint64
	// JournalUpto is the number of rows of its journal that were consumed.
	JournalUpto uint64
	// Phased means that its program has reported a state of the agent itself.
	Phased bool
	// Begun is the sequence of its AGENT_BEGUN. If the agent was paused then, it is also the
	// observation that its program has got as a file.
	Begun uint64
	// Request is the number of its newest request that an event answers.
	Request uint64
	// Before has the totals when it began, or is nil.
	Before *agboxv1.AgentProgress
}

// Pause is a pause that has begun.
type Pause struct {
	Reason  agboxv1.PauseReason
	Message string
	Since   time.Time
	// Begun is the sequence of the event that began it.
	Begun uint64
	// WakeAt is when a pause after a crash ends. It is zero for all others.
	WakeAt time.Time
	// Woken means that the reason for the pause is gone.
	Woken bool
	// Stranded means that it is ORPHANED not by the end of an incarnation, but because it was to
	// go on and could not.
	Stranded bool
	// Observation is that which the agent must take before it goes on: the sequence of the
	// event that has woken it, or of the begin of its incarnation if that was later.
	Observation uint64
}

// Decision is what somebody was asked to decide before an agent goes on. It is beside the
// pause, so no other pause and no wake takes it away: it is there until the agent has gone on
// with the answer, or has ended.
type Decision struct {
	// Message is the question. Since is when it was asked first.
	Message string
	Since   time.Time
	// Approval is unspecified until somebody has decided, and Answer what that person said.
	Approval agboxv1.AgentApproval
	Answer   string
}

// pending reports whether nobody has decided yet.
func (d *Decision) pending() bool {
	return d != nil && d.Approval == agboxv1.AgentApproval_AGENT_APPROVAL_UNSPECIFIED
}

// denied reports whether somebody has said no.
func (d *Decision) denied() bool {
	return d != nil && d.Approval == agboxv1.AgentApproval_AGENT_APPROVAL_DENIED
}

// Holder is somebody for whom an agent with lifetime held goes on.
type Holder struct {
	// ID is that of AgentHolder or ClientHolder.
	ID string
	// Since is when the hold began. Linger is how long one of a client stays without it.
	Since  time.Time
	Linger time.Duration
}

const (
	agentPrefix  = "agent:"
	clientPrefix = "client:"
)

// Breaker is the circuit breaker of a class. The zero value is closed. It is a value: its
// methods never change it.
type Breaker struct {
	// crashed has the agents that have crashed since it was closed, in the order of their
	// newest crash. Each agent is in it once.
	crashed []crash
	// Until is when a canary is allowed. It is zero while the breaker is closed.
	Until time.Time
	// Canary is the new agent that is being tried, or "".
	Canary string
}

type crash struct {
	agentID string
	at      time.Time
}

// Called is what people call the agent: its name, or its id if it has none.
func (r Record) Called() string { return cmp.Or(r.Name, r.ID) }

// Word returns the state as users see it, in capitals. A pause is shown by its reason, but for
// one that somebody has ended: such an agent waits for nobody any more.
func (r Record) Word() string {
	if r.ID == Init {
		return "ROOT"
	}
	if r.State == Paused && r.AwaitsApproval() {
		return pauseWords[agboxv1.PauseReason_PAUSE_REASON_APPROVAL]
	}
	if r.State == Paused && r.Pause != nil && !(r.Pause.Woken && waitsForSomebody(r.Pause.Reason)) {
		if word, ok := pauseWords[r.Pause.Reason]; ok {
			return word
		}
	}
	return stateWords[r.State]
}

var stateWords = map[agboxv1.AgentState]string{
	Pending: "PENDING", Planning: "PLANNING", Acquiring: "ACQUIRING", Executing: "EXECUTING", Verifying: "VERIFYING",
	Paused: "PAUSED", Completed: "COMPLETED", Aborted: "ABORTED", Failed: "FAILED", DeadLetter: "DEAD_LETTER",
}

var pauseWords = map[agboxv1.PauseReason]string{
	agboxv1.PauseReason_PAUSE_REASON_CRASH:    "RETRYING",
	agboxv1.PauseReason_PAUSE_REASON_APPROVAL: "WAITING_FOR_APPROVAL",
	agboxv1.PauseReason_PAUSE_REASON_IDLE:     "IDLE",
	agboxv1.PauseReason_PAUSE_REASON_UNHELD:   "SUSPENDED",
	agboxv1.PauseReason_PAUSE_REASON_ORPHANED: "ORPHANED",
}

// waitsForSomebody reports whether a pause ends only by what others do.
func waitsForSomebody(reason agboxv1.PauseReason) bool {
	switch reason {
	case agboxv1.PauseReason_PAUSE_REASON_CONFLICT, agboxv1.PauseReason_PAUSE_REASON_APPROVAL, agboxv1.PauseReason_PAUSE_REASON_IDLE,
		agboxv1.PauseReason_PAUSE_REASON_UNHELD, agboxv1.PauseReason_PAUSE_REASON_REQUEST:
		return true
	}
	return false
}

// AwaitsApproval reports whether the agent waits for an approval or a denial, whatever else it
// waits for.
func (r Record) AwaitsApproval() bool { return r.Decision.pending() }

// Denied reports whether the agent has to go on with another plan.
func (r Record) Denied() bool { return r.Decision.denied() }

// KeptMoves is of how many sandboxes a record knows that the agent has left: the newest.
const KeptMoves = 16

// Stays says where the incarnations ran that have begun, oldest first. Those before the first one
// ran in sandboxes that are not known any more.
func (r Record) Stays() []Stay {
	first := uint32(1)
	if n := len(r.Moves); n > 0 {
		first = r.Moves[n-1].Last + 1
	}
	if first > r.Incarnations {
		return r.Moves
	}
	return append(slices.Clone(r.Moves), Stay{first, r.Incarnations, r.SandboxID})
}

// SandboxOf is the id of the sandbox in which an incarnation ran that has begun. It is empty if
// that is not known any more.
func (r Record) SandboxOf(incarnation uint32) string {
	for _, s := range r.Moves {
		if incarnation < s.First {
			return ""
		}
		if incarnation <= s.Last {
			return s.SandboxID
		}
	}
	return r.SandboxID
}

// moved returns the record of an agent that has another sandbox.
func (r Record) moved(sandboxID string) Record {
	stays := r.Stays()
	r.Moves, r.SandboxID, r.Settled = stays[max(0, len(stays)-KeptMoves):], sandboxID, false
	return r
}

// PauseMark identifies a pause that began, or ended, while the current incarnation runs: it is
// higher than that of each earlier one. 0 means that there is none.
func (r Record) PauseMark() uint64 {
	if r.State != Paused || r.Incarnation == nil {
		return 0
	}
	if mark := max(r.Pause.Begun, r.Pause.Observation); mark > r.Incarnation.Begun {
		return mark
	}
	return 0
}

// Acts reports whether the state of the agent lets its program do something, by the table
// gate.Ops. A program that has reported no phase need not know that its agent is PLANNING.
func (r Record) Acts(op string) bool {
	state := stateWords[r.State]
	if r.State == Planning && (r.Incarnation == nil || !r.Incarnation.Phased) {
		state = stateWords[Executing]
	}
	return gate.May(op, state, "", nil)
}

// GoesOn is the state in which a paused agent goes on. What was denied needs another plan.
func (r Record) GoesOn() agboxv1.AgentState {
	if len(r.Wants) > 0 { // it has to ask again
		return Planning
	}
	if r.Denied() {
		return Planning
	}
	return Executing
}

// Exists reports whether the agent has been accepted.
func (r Record) Exists() bool { return r.LastSequence > 0 }

// Over reports whether the agent has ended. That never changes any more.
func (r Record) Over() bool { return over(r.State) }

func over(s agboxv1.AgentState) bool {
	switch s {
	case Completed, Aborted, Failed, DeadLetter:
		return true
	}
	return false
}

// KeptCrashes is how many crashes a record knows: the newest.
const KeptCrashes = 10

// KeptCheckpoints is how many checkpoints are kept: the newest, and those to fall back to.
const KeptCheckpoints = 5

// Checkpoint is the newest checkpoint, or nil.
func (r Record) Checkpoint() *agboxv1.AgentCheckpoint {
	if len(r.Checkpoints) == 0 {
		return nil
	}
	return r.Checkpoints[len(r.Checkpoints)-1]
}

// withCheckpoint returns the record with a newer checkpoint, which an event has.
func (r Record) withCheckpoint(c *agboxv1.AgentCheckpoint, event uint64) Record {
	beyond := max(0, len(r.Checkpoints)+1-KeptCheckpoints)
	r.Checkpoints = append(slices.Clone(r.Checkpoints[beyond:]), c)
	r.CheckpointEvents = append(slices.Clone(r.CheckpointEvents[beyond:]), event)
	return r
}

// Replaced is the sequence of the event whose content nobody needs once another one follows the
// record, because that has newer totals or a newer checkpoint. It is 0 if there is none.
func (r Record) Replaced(by *agboxv1.AgentEvent) uint64 {
	switch by.GetType() {
	case agboxv1.AgentEventType_AGENT_PROGRESS:
		return r.ProgressAt
	case agboxv1.AgentEventType_AGENT_CHILD_DELETED:
		return r.FormerChildrenAt
	case agboxv1.AgentEventType_AGENT_CHECKPOINT:
		if len(r.CheckpointEvents) == KeptCheckpoints {
			return r.CheckpointEvents[0]
		}
	}
	return 0
}

// Consumed is what all incarnations together have used.
func (r Record) Consumed() *agboxv1.AgentUsage { return r.Progress.GetTotal() }

// PausedFor is the event of a pause that begins.
func PausedFor(reason agboxv1.PauseReason, message string) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: reason, Message: message}},
	}
}

// PauseRequested is the event of the wish for one.
func PauseRequested(reason agboxv1.PauseReason, message string) *agboxv1.AgentEvent {
	ev := PausedFor(reason, message)
	ev.Type = agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED
	return ev
}
