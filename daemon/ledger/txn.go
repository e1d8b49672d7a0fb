package ledger

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// txn is one change of one sandbox. The function that gets it may run more than once and
// must have no effect outside the transaction.
type txn struct {
	l      *Ledger
	tx     *store.Tx
	id     string
	sb     Sandbox
	events []*agboxv1.SandboxEvent
}

// update runs fn with the sandbox at its point of the write order, and returns the
// sandbox after the commit.
func (l *Ledger) update(ctx context.Context, sandboxID string, fn func(*txn) error) (Sandbox, error) {
	var after Sandbox
	err := l.store.Update(ctx, func(tx *store.Tx) (err error) {
		after, err = l.within(tx, sandboxID, fn)
		return err
	})
	return after, err
}

// within is update inside a write transaction.
func (l *Ledger) within(tx *store.Tx, sandboxID string, fn func(*txn) error) (Sandbox, error) {
	before, _ := l.sandboxIn(tx, sandboxID)
	t := &txn{l: l, tx: tx, id: sandboxID, sb: before}
	if err := fn(t); errors.Is(err, errNothing) {
		return before, nil
	} else if err != nil {
		return before, err
	}
	tx.SetValue(overlay{sandboxID}, t.sb)
	tx.OnCommit(func() { l.publish(t.sb, t.events) })
	return t.sb, nil
}

// append adds one event. This is the only way to change a state.
func (t *txn) append(draft *agboxv1.SandboxEvent) error {
	typ := draft.GetEventType()
	if !machine.Legal(t.sb.Record, typ) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
			"Sandbox %s is %s; %s is not possible now.", t.sb.Called(), StateWord(t.sb.State), typ).With("sandbox_id", t.id)
	}
	ev := proto.CloneOf(draft)
	ev.SandboxId = t.id
	ev.OccurredAt = timestamppb.New(t.l.now())
	ev.Sequence = t.sb.LastSequence + 1
	t.sb.Record = machine.Fold(t.sb.Record, ev)
	ev.SandboxState = t.sb.State
	if err := t.tx.AppendEvent(ev); err != nil {
		return err
	}
	if ev.GetSequence() != t.sb.LastSequence {
		return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
			"The event stream of sandbox %s is at %d in the store and at %d in memory; restart the daemon.", t.id, ev.GetSequence(), t.sb.LastSequence)
	}
	t.events = append(t.events, ev)
	return nil
}

// phase appends an event about the life of the sandbox.
func (t *txn) phase(typ agboxv1.EventType, d *agboxv1.SandboxPhaseDetails) error {
	return t.append(phaseEvent(typ, d))
}

func phaseEvent(typ agboxv1.EventType, d *agboxv1.SandboxPhaseDetails) *agboxv1.SandboxEvent {
	return &agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: d}}
}

func execEvent(typ agboxv1.EventType, d *agboxv1.ExecEventDetails) *agboxv1.SandboxEvent {
	return &agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_Exec{Exec: d}}
}

// nameOwner returns the living sandbox that has the name, or "".
func (t *txn) nameOwner(name string) string {
	if id, ok := t.tx.Value(nameOverlay{name}).(string); ok {
		return id
	}
	t.l.sandboxes.mu.RLock()
	defer t.l.sandboxes.mu.RUnlock()
	return t.l.sandboxes.names[name]
}

// overlay is the key of the uncommitted state of a sandbox within a batch.
type overlay struct{ sandboxID string }

// nameOverlay is the key of the uncommitted owner of a name within a batch.
type nameOverlay struct{ name string }

// agentOverlay is the key of the uncommitted state of an agent within a batch.
type agentOverlay struct{ agentID string }

// spawnOverlay is the key of the agents that a batch has spawned, in order.
type spawnOverlay struct{}

// inboxOverlay is the key of the uncommitted inbox of an agent within a batch.
type inboxOverlay struct{ agentID string }

// stackOverlay is the key of the uncommitted sum of a stack within a batch.
type stackOverlay struct{ root string }

// shareOverlay is the key of the uncommitted part of an inbox within a batch.
type shareOverlay struct{ to, of string }

// leaseOverlay is the key of what says that a batch has begun to use the book of leases.
type leaseOverlay struct{}

// sandboxIn returns a sandbox as the batch has it so far.
func (l *Ledger) sandboxIn(tx *store.Tx, id string) (Sandbox, bool) {
	if sb, ok := tx.Value(overlay{id}).(Sandbox); ok {
		return sb, true
	}
	return l.Sandbox(id)
}

// agentIn returns the agent as the batch has it so far.
func (l *Ledger) agentIn(tx *store.Tx, id string) Agent {
	l.agents.copied.Add(1)
	if a, ok := tx.Value(agentOverlay{id}).(Agent); ok {
		return a
	}
	a, _ := l.Agent(id)
	return a
}

// spawnedIn returns the agents that the batch has spawned, in order.
func spawnedIn(tx *store.Tx) []Agent {
	spawned, _ := tx.Value(spawnOverlay{}).([]Agent)
	return spawned
}

// among returns the agents of a list and those that the batch has spawned, as the batch has them
// so far, if they fit.
func (l *Ledger) among(tx *store.Tx, list []Agent, fits func(Agent) bool) (found []Agent) {
	for _, a := range append(list, spawnedIn(tx)...) {
		if a = l.agentIn(tx, a.ID); fits(a) {
			found = append(found, a)
		}
	}
	return found
}

// agentsIn returns the agents of a sandbox that have not ended, at this point of the write order.
func (l *Ledger) agentsIn(tx *store.Tx, sandboxID string) []Agent {
	list := l.among(tx, l.AgentsIn(sandboxID), func(a Agent) bool { return a.SandboxID == sandboxID && !a.Over() && !a.Deleted })
	return slices.CompactFunc(oldestFirst(list), func(a, b Agent) bool { return a.ID == b.ID })
}

// livingChildrenIn is LivingChildren at this point of the write order.
func (l *Ledger) livingChildrenIn(tx *store.Tx, id string) []Agent {
	return l.among(tx, l.LivingChildren(id), func(c Agent) bool { return c.Parent == id && !c.Over() && !c.Deleted })
}

// heirIn is nearestLiving at this point of the write order.
func (l *Ledger) heirIn(tx *store.Tx, a Agent) string {
	return nearestLiving(func(id string) (Agent, bool) {
		p := l.agentIn(tx, id)
		return p, p.Exists() && !p.Deleted
	}, a)
}

// inboxIn returns the inbox of an agent as the batch has it so far.
func (l *Ledger) inboxIn(tx *store.Tx, agentID string) inbox {
	if box, ok := tx.Value(inboxOverlay{agentID}).(inbox); ok {
		return box
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.inboxes[agentID]
}

// putInbox replaces the inbox of an agent within a batch, and for everybody once that is
// committed.
func (l *Ledger) putInbox(tx *store.Tx, agentID string, box inbox) {
	more := box.sentBytes - l.inboxIn(tx, agentID).sentBytes
	roots := l.agentIn(tx, agentID).StackRoots
	for _, root := range roots {
		tx.SetValue(stackOverlay{root}, l.stackBytesIn(tx, root)+more)
	}
	tx.SetValue(inboxOverlay{agentID}, box)
	tx.OnCommit(func() {
		l.mail.mu.Lock()
		defer l.mail.mu.Unlock()
		l.mail.addLocked(roots, more)
		if box.empty() {
			delete(l.mail.inboxes, agentID)
		} else {
			l.mail.inboxes[agentID] = box
		}
		l.mail.changed.wake(agentID)
	})
}

// stackBytesIn is the sum of sentBytes of a stack as the batch has it so far.
func (l *Ledger) stackBytesIn(tx *store.Tx, root string) int {
	if sum, ok := tx.Value(stackOverlay{root}).(int); ok {
		return sum
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.stacks[root]
}

// shareIn is what is in an inbox of an agent or a sandbox, as the batch has it so far.
func (l *Ledger) shareIn(tx *store.Tx, to, of string) load {
	if share, ok := tx.Value(shareOverlay{to, of}).(load); ok {
		return share
	}
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	return l.mail.shares[to][of]
}

// putShares counts a message for those who have a part of the inbox, or takes it off if sign is
// -1: within the batch, and for everybody once that is committed.
func (l *Ledger) putShares(tx *store.Tx, to string, m *agboxv1.AgentMessage, sign int) {
	for _, of := range sharers(m) {
		share := l.shareIn(tx, to, of).with(m, sign)
		tx.SetValue(shareOverlay{to, of}, share)
		tx.OnCommit(func() {
			l.mail.mu.Lock()
			defer l.mail.mu.Unlock()
			l.mail.shareLocked(to, of, share)
		})
	}
}

// enqueue schedules a round of an agent once the transaction is committed. It is for agents
// other than the one whom the caller enqueues anyway.
func (l *Ledger) enqueue(tx *store.Tx, agentID string) {
	tx.OnCommit(func() {
		l.mail.mu.Lock()
		enqueue := l.mail.enqueue
		l.mail.mu.Unlock()
		if enqueue != nil {
			enqueue(agentID)
		}
	})
}

// leasesIn returns the book at this point of the write order. What a batch has changed that was
// rolled back is taken back here.
func (l *Ledger) leasesIn(tx *store.Tx) *lease.Book {
	if tx.Value(leaseOverlay{}) != nil {
		return l.leases.book
	}
	if l.leases.open {
		l.leases.book.TakeBack()
	}
	l.leases.open = true
	tx.SetValue(leaseOverlay{}, true)
	tx.OnCommit(func() {
		l.leases.book.Keep()
		l.leases.open = false
	})
	return l.leases.book
}

// keepLeases brings the book up to date with the change of an agent.
func (l *Ledger) keepLeases(tx *store.Tx, before, after Agent) {
	if was, is := inBook(before), inBook(after); before.LeaseSeq != after.LeaseSeq || len(was.Wants) != len(is.Wants) || len(was.Holds) != len(is.Holds) {
		l.leasesIn(tx).Put(is)
	}
}

// inBook is an agent as the book has it. One that died and was woken asks by itself, so its wish
// is left out.
func inBook(a Agent) lease.Party {
	p := a.LeaseParty()
	if a.Queued == 0 && (a.State != agents.Paused || a.Pause.Woken) {
		p.Wants = nil
	}
	if a.Deleted {
		p.Holds, p.Wants = nil, nil
	}
	return p
}
