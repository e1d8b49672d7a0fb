package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// agentTxn is one change of one agent. The function that gets it may run more than once
// and must have no effect outside the transaction.
type agentTxn struct {
	l  *Ledger
	tx *store.Tx
	id string
	a  Agent
	// position is the position of the newest event.
	position uint64
}

// withinAgent is updateAgent inside a write transaction, without what follows.
func (l *Ledger) withinAgent(tx *store.Tx, id string, fn func(*agentTxn) error) (Agent, error) {
	t := &agentTxn{l: l, tx: tx, id: id, a: l.agentIn(tx, id)}
	before := t.a
	if err := fn(t); errors.Is(err, errNothing) {
		return before, nil
	} else if err != nil {
		return before, err
	}
	tx.SetValue(agentOverlay{id}, t.a)
	l.keepLeases(tx, before, t.a)
	tx.OnCommit(func() { l.publishAgent(t.a, t.position) })
	return t.a, l.tellObservation(tx, before, t.a)
}

// append adds one event. This is the only way to change the state of an agent.
func (t *agentTxn) append(draft *agboxv1.AgentEvent) error {
	if draft.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
		if err := t.adopt(); err != nil {
			return err
		}
	}
	if !agents.Legal(t.a.Record, draft) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s is %s; %s is not possible now.", t.a.Called(), t.a.Word(), draft.GetType()).With("agent_id", t.id)
	}
	if err := t.put(draft); err != nil {
		return err
	}
	if draft.GetType() == agboxv1.AgentEventType_AGENT_CLOSED {
		return t.holdByInbox()
	}
	return nil
}

// put adds one event without asking whether it may follow.
func (t *agentTxn) put(draft *agboxv1.AgentEvent) error {
	ev := proto.CloneOf(draft)
	ev.AgentId, ev.OccurredAt = t.id, timestamppb.New(t.l.now())
	ev.Sequence = t.a.LastSequence + 1
	ev.State = agents.Fold(t.a.Record, ev).State
	if ev.State == agents.Paused && t.a.State != agents.Paused {
		ev.Picture = t.picture()
	}
	if err := t.tx.AppendAgentEvent(ev); err != nil {
		return err
	}
	if ev.GetSequence() != t.a.LastSequence+1 {
		return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
			"The event stream of agent %s is at %d in the store and at %d in memory; restart the daemon.", t.id, ev.GetSequence(), t.a.LastSequence+1)
	}
	replaced := t.a.Replaced(ev)
	t.a.Record, t.position = agents.Fold(t.a.Record, ev), ev.GetPosition()
	if replaced != 0 {
		return t.tx.DropAgentEvent(t.id, replaced, ev.GetType())
	}
	return t.releaseExcess()
}

// adopt gives the agent a living parent before its end, if it has none, so that its end is
// told to one that can learn of it.
func (t *agentTxn) adopt() error {
	heir := t.l.heirIn(t.tx, t.a)
	if heir == t.a.Parent || t.a.Over() {
		return nil
	}
	return t.append(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: heir, From: t.a.Parent}},
	})
}

func (t *agentTxn) lease(typ agboxv1.AgentEventType, of *agboxv1.AgentLeases) error {
	return t.append(&agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Lease{Lease: of}})
}

// releaseExcess appends the release of what the agent's new state does not allow it to have.
func (t *agentTxn) releaseExcess() error {
	if !t.a.ForfeitsLeases() {
		return nil
	}
	return t.lease(agboxv1.AgentEventType_AGENT_RELEASED, &agboxv1.AgentLeases{
		Leases: agents.Leases(t.a.Holds), Dropped: true, Message: fmt.Sprintf("It is %s.", t.a.Word()),
	})
}

// Short names for reasons of pauses.
const (
	forRequest = agboxv1.PauseReason_PAUSE_REASON_REQUEST
	forDrain   = agboxv1.PauseReason_PAUSE_REASON_DRAINED
	forIdle    = agboxv1.PauseReason_PAUSE_REASON_IDLE

	forApproval = agboxv1.PauseReason_PAUSE_REASON_APPROVAL
)

// wake appends that the agent may go on.
func (t *agentTxn) wake(w *agboxv1.AgentWake) error {
	return t.append(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: w},
	})
}

// wantPause appends the wish for a pause. It replaces an earlier one.
func (t *agentTxn) wantPause(reason agboxv1.PauseReason, message string) error {
	return t.append(agents.PauseRequested(reason, message))
}

const forUnheld = agboxv1.PauseReason_PAUSE_REASON_UNHELD

// open adds a holder, and wakes the agent if that is what it waits for.
func (t *agentTxn) open(holder string, linger time.Duration) error {
	if len(t.a.Holders) >= agents.MaxHolders && !t.a.HeldBy(holder) {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s has %d holders already, which is the limit; close some first.", t.id, agents.MaxHolders).With("agent_id", t.id)
	}
	if err := t.append(agents.Opened(holder, linger)); err != nil {
		return err
	}
	switch {
	case t.a.PauseWanted.GetReason() == forUnheld: // the drain is not taken back
		return t.wantPause(forDrain, "It is held again.")
	case t.a.Suspended():
		return t.wake(&agboxv1.AgentWake{By: holder})
	}
	return nil
}

// holdByInbox makes the messages that an agent has not acknowledged its holder, if it has no other
// and a message wakes it.
func (t *agentTxn) holdByInbox() error {
	if !t.a.Unheld() || !agents.WakesOnMessage(forUnheld, t.a.Spec.GetWakeOn()) || t.l.inboxIn(t.tx, t.a.ID).unread() == 0 {
		return nil
	}
	return t.open(agents.InboxHolder, 0)
}

// Picture returns how the surroundings of an agent are now; nil if its sandbox is gone.
func (l *Ledger) Picture(a Agent) *agboxv1.AgentPicture {
	sb, living := l.Sandbox(a.SandboxID)
	return picture(sb, living)
}

// picture is Picture within a transaction.
func (t *agentTxn) picture() *agboxv1.AgentPicture {
	sb, living := t.l.sandboxIn(t.tx, t.a.SandboxID)
	p := picture(sb, living)
	if p != nil {
		p.Leases = agents.Leases(t.a.Holds)
	}
	return p
}

func picture(sb Sandbox, living bool) *agboxv1.AgentPicture {
	if !living || !sb.Exists() {
		return nil
	}
	p := &agboxv1.AgentPicture{
		SandboxId: sb.ID, ReadyAt: timestamppb.New(sb.ReadyAt), Image: sb.Spec.GetImage(),
		Services: make(map[string]uint32), Limits: make(map[string]string),
	}
	for name, s := range sb.Services {
		p.Services[name] = s.Start
	}
	for name, value := range map[string]string{
		"cpu_limit": sb.Spec.GetCpuLimit(), "memory_limit": sb.Spec.GetMemoryLimit(), "disk_limit": sb.Spec.GetDiskLimit(),
	} {
		if value != "" {
			p.Limits[name] = value
		}
	}
	return p
}

const observationText = "The agent was paused and goes on now: the body says what changed meanwhile."

// tellObservation keeps the message that says what changed during a pause: it is in the inbox
// while a running incarnation has to take that observation, unless it was acknowledged. What
// has changed is not stored: it is added when the message is read. The message is not counted
// as unread, since it is about the wake and must not cause another one.
func (l *Ledger) tellObservation(tx *store.Tx, before, after Agent) error {
	due := dueObservation(after)
	if due == dueObservation(before) {
		return nil
	}
	box := l.inboxIn(tx, after.ID)
	if box.observation != 0 {
		if err := tx.RemoveMessage(after.ID, box.observation); err != nil {
			return err
		}
		box.observation = 0
	}
	if due != 0 {
		m := &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION, From: agents.Init, Text: observationText, At: timestamppb.New(l.now())}
		if err := tx.PutMessage(after.ID, m); err != nil {
			return err
		}
		box = box.with(m, 1)
	}
	l.putInbox(tx, after.ID, box)
	return nil
}

// dueObservation is the observation that a running incarnation of the agent has to take, or 0.
func dueObservation(a Agent) uint64 {
	if a.Incarnation == nil {
		return 0
	}
	return a.PendingObservation()
}

// Observes reports whether the inbox of an agent has a message that says what changed during a
// pause.
func (l *Ledger) Observes(agentID string) bool {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID].observation != 0
}
