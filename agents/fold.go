package agents

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// moves has the states that an event with a target may lead to, by the state before it.
// The target is AgentEvent.state.
var moves = map[agboxv1.AgentEventType]map[agboxv1.AgentState][]agboxv1.AgentState{
	agboxv1.AgentEventType_AGENT_PHASE: {
		Pending:   {Planning},
		Planning:  {Executing},
		Acquiring: {Planning},
		Executing: {Verifying, Planning},
		Verifying: {Executing, Planning},
	},
	agboxv1.AgentEventType_AGENT_RESUMED: {
		Paused: {Executing, Planning},
	},
	agboxv1.AgentEventType_AGENT_ENDED: ends(),
}

func ends() map[agboxv1.AgentState][]agboxv1.AgentState {
	all := make(map[agboxv1.AgentState][]agboxv1.AgentState)
	for _, live := range []agboxv1.AgentState{Pending, Planning, Acquiring, Executing, Verifying, Paused} {
		all[live] = []agboxv1.AgentState{Completed, Aborted, Failed, DeadLetter}
	}
	return all
}

// Legal reports whether the event may follow the record. Of the event it reads type,
// state and incarnation. README.md has the same table; a test compares the two.
func Legal(r Record, ev *agboxv1.AgentEvent) bool {
	typ := ev.GetType()
	if !r.Exists() {
		return typ == agboxv1.AgentEventType_AGENT_SPAWNED
	}
	if r.ID == Init {
		return ofInit(typ)
	}
	if r.Deleted {
		return false
	}
	if targets, moving := moves[typ]; moving && !slices.Contains(targets[r.State], ev.GetState()) {
		return false
	}
	if of := ev.GetIncarnation(); of != 0 && typ != agboxv1.AgentEventType_AGENT_BEGUN && (r.Incarnation == nil || r.Incarnation.N != of) {
		return false // a report of an incarnation that has ended
	}
	live := !r.Over()
	switch typ {
	case agboxv1.AgentEventType_AGENT_BEGUN:
		return (r.State == Pending || r.State == Paused) && r.Incarnation == nil && !r.Undecided && r.Kill == nil && !r.AwaitsApproval() && ev.GetIncarnation() == r.Incarnations+1
	case agboxv1.AgentEventType_AGENT_MOVED:
		return (r.State == Pending || r.State == Paused) && r.Incarnation == nil && !r.Undecided && r.Kill == nil
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		return live && r.Incarnation != nil
	case agboxv1.AgentEventType_AGENT_PHASE, agboxv1.AgentEventType_AGENT_RESUMED:
		return r.Incarnation != nil && (ev.GetState() != Executing || len(r.Wants) == 0) && (typ != agboxv1.AgentEventType_AGENT_RESUMED || r.informed(ev))
	case agboxv1.AgentEventType_AGENT_MANIFEST, agboxv1.AgentEventType_AGENT_GRANTED, agboxv1.AgentEventType_AGENT_CONFLICT,
		agboxv1.AgentEventType_AGENT_RELEASED, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED:
		return legalLease(r, ev)
	case agboxv1.AgentEventType_AGENT_CHECKPOINT:
		// The journal of an adopted agent is read again, and has checkpoints that it has.
		newer := r.Checkpoint() == nil || ev.GetCheckpoint().GetSeq() > r.Checkpoint().GetSeq()
		return live && r.Incarnation != nil && newer
	case agboxv1.AgentEventType_AGENT_PROGRESS,
		agboxv1.AgentEventType_AGENT_CONTEXT, agboxv1.AgentEventType_AGENT_LIVENESS, agboxv1.AgentEventType_AGENT_DONE_REPORTED:
		return live && r.Incarnation != nil
	case agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED, agboxv1.AgentEventType_AGENT_KILL_REQUESTED, agboxv1.AgentEventType_AGENT_PAUSED,
		agboxv1.AgentEventType_AGENT_OPENED, agboxv1.AgentEventType_AGENT_REPARENTED:
		return live
	case agboxv1.AgentEventType_AGENT_CLOSED, agboxv1.AgentEventType_AGENT_SIGNAL_FAILED, agboxv1.AgentEventType_AGENT_CHILD_DELETED:
		return true
	case agboxv1.AgentEventType_AGENT_WOKEN:
		return r.State == Paused
	case agboxv1.AgentEventType_AGENT_ENDED:
		return r.Incarnation == nil
	case agboxv1.AgentEventType_AGENT_DELETED:
		return r.Over()
	}
	return false
}

// ofInit reports whether the type is one of the agent init.
func ofInit(typ agboxv1.AgentEventType) bool {
	switch typ {
	case agboxv1.AgentEventType_AGENT_CLASS_CRASHED, agboxv1.AgentEventType_AGENT_BREAKER_OPENED,
		agboxv1.AgentEventType_AGENT_BREAKER_CANARY, agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
		return true
	}
	return false
}

// Fold returns the record after one more event. It ignores an event that is not newer
// than the record, so folding a stream twice has the same result as folding it once.
func Fold(r Record, ev *agboxv1.AgentEvent) Record {
	if ev.GetSequence() <= r.LastSequence {
		return r
	}
	r.LastSequence = ev.GetSequence()
	before := r.State
	at := ev.GetOccurredAt().AsTime()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_SPAWNED:
		r = foldSpawned(r, ev)
	case agboxv1.AgentEventType_AGENT_BEGUN:
		r = foldBegun(r, ev)
	case agboxv1.AgentEventType_AGENT_MOVED:
		r = r.moved(ev.GetMoved().GetSandboxId())
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		r = foldIncarnationEnded(r, ev)
	case agboxv1.AgentEventType_AGENT_PHASE:
		r.State = ev.GetState()
	case agboxv1.AgentEventType_AGENT_RESUMED:
		r.State, r.Pause = ev.GetState(), nil
		if ev.GetResume().GetReplan() {
			r.Checkpoints = dropDigests(r.Checkpoints)
		}
	case agboxv1.AgentEventType_AGENT_PROGRESS:
		if ev.GetProgress().GetSteps() > r.Progress.GetSteps() {
			r.Uncounted = 0
		}
		r.Progress, r.ProgressAt = ev.GetProgress(), ev.GetSequence()
	case agboxv1.AgentEventType_AGENT_CHECKPOINT:
		r = r.withCheckpoint(ev.GetCheckpoint(), ev.GetSequence())
		r.Digested = ev.GetCheckpoint().GetKind() == agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE
		r.Uncounted = 0
	case agboxv1.AgentEventType_AGENT_CONTEXT:
		r.Context = ev.GetGauge().GetContext()
	case agboxv1.AgentEventType_AGENT_LIVENESS:
		r.Liveness = ev.GetGauge().GetLiveness()
	case agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED:
		if r.PauseWanted = ev.GetPause(); r.PauseWanted.GetReason() == agboxv1.PauseReason_PAUSE_REASON_APPROVAL {
			r = r.asked(r.PauseWanted.GetMessage(), at)
		}
	case agboxv1.AgentEventType_AGENT_PAUSED:
		r = foldPaused(r, ev)
	case agboxv1.AgentEventType_AGENT_WOKEN:
		r = foldWoken(r, ev)
	case agboxv1.AgentEventType_AGENT_OPENED:
		r = foldOpened(r, ev)
	case agboxv1.AgentEventType_AGENT_CLOSED:
		r.Holders, r.Streams = r.without(ev.GetHold().GetHolder()), r.withoutStream(ev.GetHold().GetStream())
	case agboxv1.AgentEventType_AGENT_KILL_REQUESTED:
		r.Kill, r.KillAt = ev.GetKill(), at
	case agboxv1.AgentEventType_AGENT_REPARENTED:
		r = foldReparented(r, ev)
	case agboxv1.AgentEventType_AGENT_DONE_REPORTED:
		if r.Done == nil {
			r.DoneAt = at
		}
		r.Done = ev.GetDone()
	case agboxv1.AgentEventType_AGENT_ENDED:
		r.State, r.Done, r.EndedAt = ev.GetState(), ev.GetDone(), at
		r.Pause, r.PauseWanted, r.Decision, r.Undecided = nil, nil, nil, false
		r = countCrash(r, ev.GetDone().GetAttempt())
	case agboxv1.AgentEventType_AGENT_DELETED:
		r.Deleted = true
	case agboxv1.AgentEventType_AGENT_CHILD_DELETED:
		r.FormerChildren, r.FormerChildrenAt = ev.GetFormerChildren(), ev.GetSequence()
	case agboxv1.AgentEventType_AGENT_MANIFEST, agboxv1.AgentEventType_AGENT_GRANTED, agboxv1.AgentEventType_AGENT_CONFLICT,
		agboxv1.AgentEventType_AGENT_RELEASED, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED:
		r = foldLease(r, ev)
	case agboxv1.AgentEventType_AGENT_CLASS_CRASHED, agboxv1.AgentEventType_AGENT_BREAKER_OPENED,
		agboxv1.AgentEventType_AGENT_BREAKER_CANARY, agboxv1.AgentEventType_AGENT_BREAKER_CLOSED:
		r = foldBreaker(r, ev)
	}
	if r.State != before {
		r.Digested = r.Digested && before != Paused
		r.StateChangedAt = at
		if before == Paused {
			r.Decision = nil // it has gone on with the answer, or has ended
		}
		r.Away, r.AwaySince, r.AwayFrom = ev.GetPicture(), at, ev.GetPosition()
		r.AwayAt = ev.GetSequence()
	}
	if r.Incarnation != nil && ev.GetRequest() > r.Incarnation.Request {
		inc := *r.Incarnation
		inc.Request = ev.GetRequest()
		inc.Phased = inc.Phased || ev.GetType() == agboxv1.AgentEventType_AGENT_RESUMED // its program says itself how it goes on
		r.Incarnation = &inc
	}
	if r.Incarnation != nil && ev.GetJournalUpto() > 0 {
		inc := *r.Incarnation
		inc.JournalUpto = max(inc.JournalUpto, ev.GetJournalUpto())
		inc.Phased = inc.Phased || ev.GetType() == agboxv1.AgentEventType_AGENT_PHASE
		r.Incarnation = &inc
	}
	return r
}

func foldSpawned(r Record, ev *agboxv1.AgentEvent) Record {
	s := ev.GetSpawned()
	r.ID, r.Name, r.Class, r.Parent = ev.GetAgentId(), s.GetName(), s.GetClass(), s.GetParent()
	r.Origin, r.SandboxID, r.Owned, r.Depth = s.GetParent(), s.GetSandboxId(), s.GetOwned(), s.GetDepth()
	r.Stack, r.StackRoots, r.Reach, r.Tree = s.GetStack(), s.GetStackRoots(), s.GetReach(), s.GetTree()
	r = r.bordered()
	r.FromAgent, r.FromCheckpoint = s.GetFromAgent(), s.GetFromCheckpoint()
	r.CreatedAt, r.Position = ev.GetOccurredAt().AsTime(), ev.GetPosition()
	r.State, r.After = Pending, s.GetAfter()
	r = foldHeld(r, ev)
	if c := s.GetCheckpoint(); c != nil {
		r = r.withCheckpoint(c, 0)
	}
	return r
}

func foldBegun(r Record, ev *agboxv1.AgentEvent) Record {
	b := ev.GetBegun()
	r.Incarnations, r.Settled = ev.GetIncarnation(), true
	r.Incarnation = &Incarnation{
		N: ev.GetIncarnation(), ExecID: b.GetExecId(), SandboxID: b.GetSandboxId(),
		BegunAt: ev.GetOccurredAt().AsTime(), Attempt: b.GetAttempt(), Checkpoint: b.GetCheckpoint(),
		Before: r.Progress, Begun: ev.GetSequence(),
	}
	r.ProgressAt, r.Loss = 0, ""
	r.Context = agboxv1.AgentContext_AGENT_CONTEXT_HEALTHY
	r.Strategy = b.GetStrategy()
	if r.Pause != nil {
		r = r.woken(ev) // what it waited for has come: its time, its sandbox
	}
	return r
}

// foldIncarnationEnded leaves an agent as it was if its incarnation was never started.
func foldIncarnationEnded(r Record, ev *agboxv1.AgentEvent) Record {
	r.Incarnation, r.Context, r.Liveness = nil, 0, 0
	switch {
	case ev.GetEnd().GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED:
		r.Last, r.LastAt, r.Undecided = ev.GetEnd(), ev.GetOccurredAt().AsTime(), true
		r.Unstarted = 0
		if orphans(r.Last) {
			r.Loss = errorMessage(r.Last)
		}
	case ev.GetEnd().GetErrorMessage() != "": // else its sandbox was not ready any more
		r.Unstarted, r.UnstartedAt, r.UnstartedWhy = r.Unstarted+1, ev.GetOccurredAt().AsTime(), ev.GetEnd().GetErrorMessage()
	}
	return r
}

func foldPaused(r Record, ev *agboxv1.AgentEvent) Record {
	p := ev.GetPause()
	pause := Pause{Reason: p.GetReason(), Message: p.GetMessage(), Since: ev.GetOccurredAt().AsTime(), Begun: ev.GetSequence()}
	if p.GetWakeAt() != nil {
		pause.WakeAt = p.GetWakeAt().AsTime()
	}
	if pause.Reason == agboxv1.PauseReason_PAUSE_REASON_APPROVAL {
		r = r.asked(pause.Message, pause.Since)
	}
	if pause.Reason == agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
		r.Loss, pause.Stranded = cmp.Or(pause.Message, "It was lost."), !r.Undecided
	}
	pause = r.overDecision(pause)
	r.Pause = &pause
	if r.Undecided && uncounted(r.Last, p.GetReason()) {
		r.Uncounted++
	}
	r.State, r.Undecided = Paused, false
	if r.PauseWanted.GetReason() == p.GetReason() {
		r.PauseWanted = nil
	}
	if p.GetStrategy() != "" {
		r.Strategy = p.GetStrategy()
	}
	return countCrash(r, p.GetAttempt())
}

// countCrash counts the newest end as a crash if the event that answers it says so:
// attempt is then the number of crashes with it.
func countCrash(r Record, attempt uint32) Record {
	if attempt <= r.Crashes {
		return r
	}
	r.Crashes, r.Uncounted, r.Loss = attempt, 0, "" // a loss that counts as a crash is answered as one
	if outOfMemory(r.Last) {
		r.OOMs++
	}
	if r.Last.GetOomKilled() {
		r.KernelOOMs++
	}
	if crash := proto.CloneOf(r.Last); crash != nil {
		crash.Attempt, crash.EndedAt, crash.ErrorStack = attempt, timestamppb.New(r.LastAt), ""
		r.History = append(slices.Clone(r.History), crash)
		r.History = r.History[max(0, len(r.History)-KeptCrashes):]
	}
	r.Errors = append(slices.Clone(r.Errors), errorKey(r.Last))
	r.Errors = r.Errors[max(0, len(r.Errors)-sameErrors):]
	return r
}

// TrimPart is how many events are removed together at most.
const TrimPart = 256

// Trim returns the sequences of events without which Fold computes the same record. events are
// all that are left of one agent, in their order. The first one, the newest keep (at least one)
// and those since a time stay. The parts have at most TrimPart sequences each, and the record is
// the same after each part in turn, so a crash may leave the others.
//
// An event of an agent says one part of what is true of it; later ones repeat or replace most of
// that. Which ones do is not listed here: it is tried, so that a new type of event needs no
// rule. From the newest candidates to the oldest, so a try folds little besides what stays.
func Trim(events []*agboxv1.AgentEvent, keep int, since time.Time) (parts [][]uint64) {
	n := max(0, len(events)-max(1, keep))
	for n > 0 && !events[n-1].GetOccurredAt().AsTime().Before(since) {
		n--
	}
	t := trimming{events: events, before: make([]Record, n+1), stays: slices.Clone(events[n:])}
	slices.Reverse(t.stays)
	for i, ev := range events[:n] {
		t.before[i+1] = Fold(t.before[i], ev)
	}
	t.want = t.without(n)
	for end := n; end > 1; end = max(1, end-TrimPart) {
		t.try(max(1, end-TrimPart), end)
	}
	return t.parts
}

// trimming is a Trim in progress.
type trimming struct {
	events []*agboxv1.AgentEvent
	// before has the record before each candidate.
	before []Record
	// want is the record after all events.
	want Record
	// stays are the events after the candidates that were not tried yet which are not removed,
	// newest first.
	stays []*agboxv1.AgentEvent
	parts [][]uint64
}

// without returns the record of all events before one and of those that stay.
func (t *trimming) without(start int) Record {
	r := t.before[start]
	for _, ev := range slices.Backward(t.stays) {
		r = Fold(r, ev)
	}
	return r
}

// same reports whether the events from start on, but for those that stay, are of no consequence.
// Fold may panic about a history that cannot have happened, such as the end of a pause that was
// left out: then they are not.
func (t *trimming) same(start int) (same bool) {
	defer func() { same = recover() == nil && same }()
	return reflect.DeepEqual(t.without(start), t.want)
}

// try removes those events from start to before end that can go.
func (t *trimming) try(start, end int) {
	switch {
	case t.same(start):
		t.remove(t.events[start:end])
	case end-start == 1:
		t.stays = append(t.stays, t.events[start])
	default:
		middle := (start + end) / 2
		t.try(middle, end)
		t.try(start, middle)
	}
}

func (t *trimming) remove(events []*agboxv1.AgentEvent) {
	if last := len(t.parts) - 1; last < 0 || len(t.parts[last])+len(events) > TrimPart {
		t.parts = append(t.parts, nil)
	}
	last := &t.parts[len(t.parts)-1]
	for _, ev := range events {
		*last = append(*last, ev.GetSequence())
	}
}
