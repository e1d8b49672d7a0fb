package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/store"
)

// agentTxn is one change of one agent. The function that gets it may run more than once
// and must have no effect outside the transaction.
type agentTxn struct {
	l  *Ledger
	tx *store.Tx
	a  Agent
	// position is the position of the newest event.
	position uint64
}

// agentOverlay is the key of the uncommitted state of an agent within a batch.
type agentOverlay struct{ agentID string }

// spawnOverlay is the key of the agents that a batch has spawned, in order.
type spawnOverlay struct{}

// updateAgent runs fn with the agent at its point of the write order, and returns the
// agent after the commit. What follows is committed with it: for the breaker of its class,
// for those that want leases it no longer has, for its parent and init, and the wake of an agent that
// becomes IDLE with unread messages.
func (l *Ledger) updateAgent(ctx context.Context, id string, fn func(*agentTxn) error) (Agent, error) {
	return l.updateReports(ctx, id, Reports{}, fn)
}

// requestOf is updateAgent for a request of a user: it refuses an agent that does not exist,
// and init.
func (l *Ledger) requestOf(ctx context.Context, id string, fn func(*agentTxn) error) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		switch {
		case id == agents.Init:
			return isRoot()
		case !t.a.Exists():
			return agentNotFound(id)
		}
		return fn(t)
	})
}

// updateReports is updateAgent with messages that the agent has sent, which are delivered if
// fn changes it.
func (l *Ledger) updateReports(ctx context.Context, id string, reports Reports, fn func(*agentTxn) error) (Agent, error) {
	var after Agent
	err := l.store.Update(ctx, func(tx *store.Tx) (err error) {
		before := l.agentIn(tx, id)
		if after, err = l.withinAgent(tx, id, fn); err != nil {
			return err
		}
		if err := l.post(tx, before, after, reports.Sent); err != nil {
			return err
		}
		if err := l.followLeases(tx, before, after); err != nil {
			return err
		}
		if err := l.wakeForUnread(tx, before, after); err != nil {
			return err
		}
		after = l.agentIn(tx, id)
		if err := l.tellKin(tx, before, after); err != nil {
			return err
		}
		if err := l.askToEnd(tx, before, after); err != nil {
			return err
		}
		after = l.agentIn(tx, id)
		if err := l.tellUnstarted(tx, before, after); err != nil {
			return err
		}
		return l.tellBreaker(tx, before, after)
	})
	return after, err
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

// withinAgent is updateAgent inside a write transaction, without what follows.
func (l *Ledger) withinAgent(tx *store.Tx, id string, fn func(*agentTxn) error) (Agent, error) {
	t := &agentTxn{l: l, tx: tx, a: l.agentIn(tx, id)}
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
func (t *agentTxn) append(agentID string, draft *agboxv1.AgentEvent) error {
	if draft.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
		if err := t.adopt(agentID); err != nil {
			return err
		}
	}
	if !agents.Legal(t.a.Record, draft) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"Agent %s is %s; %s is not possible now.", t.a.Called(), t.a.Word(), draft.GetType()).With("agent_id", agentID)
	}
	if err := t.put(agentID, draft); err != nil {
		return err
	}
	if draft.GetType() == agboxv1.AgentEventType_AGENT_CLOSED {
		return t.holdByInbox()
	}
	return nil
}

// put adds one event without asking whether it may follow.
func (t *agentTxn) put(agentID string, draft *agboxv1.AgentEvent) error {
	ev := proto.CloneOf(draft)
	ev.AgentId, ev.OccurredAt = agentID, timestamppb.New(t.l.now())
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
			"The event stream of agent %s is at %d in the store and at %d in memory; restart the daemon.", agentID, ev.GetSequence(), t.a.LastSequence+1)
	}
	replaced := t.a.Replaced(ev)
	t.a.Record, t.position = agents.Fold(t.a.Record, ev), ev.GetPosition()
	if replaced != 0 {
		return t.tx.DropAgentEvent(agentID, replaced, ev.GetType())
	}
	return t.forfeit()
}

// NewAgent is what SpawnAgent accepts.
type NewAgent struct {
	// ID must be new. Name may be empty.
	ID, Name string
	// Parent is the agent that spawns it, which must live. Empty means agent.Init.
	Parent string
	// MaxChildren bounds the children of the parent that have not ended, with this one. 0 means
	// only the bound of all agents.
	MaxChildren int
	// MaxSandboxes bounds the sandboxes that were made for agents of its tree, with its own if
	// that is Derived.
	MaxSandboxes int
	// Spec has the budget that is wanted. A child of an agent gets a part of the budget of that.
	Spec *agboxv1.AgentSpec
	// Reach says for one that a user spawns which border it is within: "sandbox:ID", "stack:NAME",
	// agent.AllReached, or empty for that of its sandbox.
	Reach string
	// SandboxID is an existing sandbox or, if Own is set, the id for a new one.
	SandboxID string
	Own       *agboxv1.CreateSpec
	// Work is the content of the spec's work, or nil.
	Work []byte
	// FromAgent and FromCheckpoint are whose work it continues, and Checkpoint is its copy of
	// that, whose file exists. All are unset if it continues none.
	FromAgent      string
	FromCheckpoint uint64
	Checkpoint     *agboxv1.AgentCheckpoint
	// Holder is its first holder beside its parent, whose hold lingers for Linger. It may be
	// empty.
	Holder string
	Linger time.Duration
}

// SpawnAgent accepts an agent and, if it gets an own one, its sandbox: both are one
// transaction. An id that was used for the same agent returns that one.
func (l *Ledger) SpawnAgent(ctx context.Context, n NewAgent) (Agent, error) {
	nonce, shown := ids.New(), (*agboxv1.CreateSpec)(nil)
	if n.Own != nil {
		var err error
		if shown, err = l.hide(ctx, n.SandboxID, n.Own); err != nil {
			return Agent{}, err
		}
	}
	if ofInit(n) {
		n.Spec = agents.WithinStack(n.Spec)
	}
	a, err := l.updateAgent(ctx, n.ID, func(t *agentTxn) error {
		if n.ID != agents.Init && t.tx.AgentReserved(n.ID) {
			return t.sameAgent(n)
		}
		stack, roots, err := t.stackOf(n)
		if err != nil {
			return err
		}
		if err := errors.Join(t.mayspawn(n, roots), t.mayHaveChild(n)); err != nil {
			return err
		}
		if err := errors.Join(t.mayJoinStacks(roots), t.mayHaveSandbox(n)); err != nil {
			return err
		}
		spec, err := t.allot(n)
		if err != nil {
			return err
		}
		if err := t.place(n, nonce, shown); err != nil {
			return err
		}
		if err := t.tx.ReserveAgent(n.ID, l.now()); err != nil {
			return err
		}
		if err := t.tx.PutAgentConfig(n.ID, spec); err != nil {
			return err
		}
		if n.Work != nil {
			if err := t.tx.PutAgentWork(n.ID, n.Work); err != nil {
				return err
			}
		}
		t.a.Spec = spec
		after, err := t.toFollow(n.Spec.GetAfter())
		if err != nil {
			return err
		}
		err = t.append(n.ID, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_SPAWNED,
			Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{
				Name: n.Name, Class: n.Spec.GetClass(), Parent: cmp.Or(n.Parent, agents.Init), SandboxId: n.SandboxID, Owned: n.Own != nil,
				FromAgent: n.FromAgent, FromCheckpoint: n.FromCheckpoint, Checkpoint: n.Checkpoint,
				After:    after,
				Lifetime: n.Spec.GetLifetime(),
				Depth:    t.l.agentIn(t.tx, n.Parent).Depth + 1,
				Stack:    stack, StackRoots: roots, Reach: n.Reach,
				Tree: t.treeOf(n),
			}},
		})
		if err == nil && n.Holder != "" {
			err = t.open(n.Holder, n.Linger)
		}
		spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
		t.tx.SetValue(spawnOverlay{}, append(spawned[:len(spawned):len(spawned)], t.a))
		if err == nil {
			t.countSandbox(n)
		}
		return err
	})
	if err != nil {
		return a, errors.Join(err, l.unmake(n, err))
	}
	return a, nil
}

// sameAgent decides about an id that is taken.
func (t *agentTxn) sameAgent(n NewAgent) error {
	if t.a.Reach == n.Reach && t.a.Exists() && t.a.Name == n.Name && t.a.SandboxID == n.SandboxID && t.a.Owned == (n.Own != nil) &&
		t.a.FromAgent == n.FromAgent && t.a.FromCheckpoint == n.FromCheckpoint && proto.Equal(t.a.Spec, n.Spec) {
		return errNothing
	}
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
		"The agent id %q was used by another request, and ids are never reused; choose another or leave it out.", n.ID).With("agent_id", n.ID)
}

// mayspawn checks name and bounds against committed agents and those of the batch. A name is taken
// within the border of a sandbox, and among the agents of users: what runs within one border
// neither takes a name from others nor learns theirs.
func (t *agentTxn) mayspawn(n NewAgent, roots []string) error {
	if n.ID == agents.Init || n.Name == agents.Init {
		return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
			"The id and the name %q belong to the root of all agents; choose another.", agents.Init).With("agent_id", agents.Init)
	}
	book, index := &t.l.agents, &t.l.agents.index
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	living, inSandbox := book.count(index.living, atWork, idle)+len(spawned), book.count(index.livingIn, n.SandboxID)
	for _, a := range spawned {
		if a.SandboxID == n.SandboxID {
			inSandbox++
		}
	}
	world := agents.Record{StackRoots: roots}.World()
	for _, a := range append(book.among(index.named, n.Name), spawned...) {
		if n.Name != "" && a.Name == n.Name && !a.Over() && (a.World() == world || a.OfUser() && ofInit(n)) {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS,
				"Agent %s already has the name %q; choose another name, or end that agent.", a.ID, n.Name).With("agent_id", a.ID)
		}
	}
	switch {
	case living >= maxAgents:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"There are %d agents already, which is the limit; end some first.", maxAgents)
	case inSandbox >= maxAgentsInSandbox:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Sandbox %s has %d agents already, which is the limit; use another sandbox.", n.SandboxID, maxAgentsInSandbox)
	}
	return nil
}

// place accepts the agent's own sandbox, or checks the one that it is to run in.
func (t *agentTxn) place(n NewAgent, nonce string, shown *agboxv1.CreateSpec) error {
	if n.Own != nil {
		_, err := t.l.within(t.tx, n.SandboxID, func(s *txn) error { return s.create(n.SandboxID, nonce, n.Own, shown, RequestKey{}) })
		return err
	}
	sb, ok := t.l.sandboxIn(t.tx, n.SandboxID)
	switch {
	case !ok || !sb.Exists():
		return notFound(n.SandboxID)
	case sb.Want == machine.WantDeleted:
		return NotReady(sb.Record)
	}
	return nil
}

// EmitAgent appends events that were decided from the record seen, all or none. If the
// agent has changed since so that another decision is due, it appends nothing. Reports
// among the events are treated as by RecordReports.
func (l *Ledger) EmitAgent(ctx context.Context, seen agents.Record, events ...*agboxv1.AgentEvent) (Agent, error) {
	return l.EmitReports(ctx, seen, Reports{Events: events})
}

// EmitReports is EmitAgent with reports, which may have messages.
func (l *Ledger) EmitReports(ctx context.Context, seen agents.Record, reports Reports) (Agent, error) {
	return l.updateReports(ctx, seen.ID, reports, func(t *agentTxn) error {
		refused := func(ev *agboxv1.AgentEvent) bool { return !t.admits(ev) }
		if t.a.decided() != decidedFrom(seen) || slices.ContainsFunc(reports.Events, refused) {
			return errNothing
		}
		return t.appendAll(seen.ID, reports.Events)
	})
}

// RecordReports appends what an incarnation has reported: events with journal_upto, the
// number of their row in its journal. It leaves out rows that were consumed before, and
// what is not possible now: reports of an incarnation that has ended, and rows that only
// somebody else than the supervisor can have written. Messages are delivered together with
// the event that consumes their rows.
func (l *Ledger) RecordReports(ctx context.Context, agentID string, reports Reports) (Agent, error) {
	return l.updateReports(ctx, agentID, reports, func(t *agentTxn) error { return t.appendAll(agentID, reports.Events) })
}

// appendAll adds events of an agent; of the reports among them, those that RecordReports
// does not leave out.
func (t *agentTxn) appendAll(agentID string, events []*agboxv1.AgentEvent) error {
	before, consumed := t.a.LastSequence, uint64(0)
	if t.a.Incarnation != nil {
		consumed = t.a.Incarnation.JournalUpto
	}
	for _, ev := range events {
		if row := ev.GetJournalUpto(); row > 0 && (row <= consumed || !agents.Legal(t.a.Record, ev)) {
			continue
		}
		if err := t.append(agentID, ev); err != nil {
			return err
		}
	}
	if t.a.LastSequence == before {
		return errNothing
	}
	return nil
}

// decision is what the next step of an agent depends on besides observations. Those are of the
// sandbox that the record names.
type decision struct {
	state                       agboxv1.AgentState
	begun, running              uint32
	undecided, kill, done, woke bool
	unheld, asked               bool
	pause, paused               agboxv1.PauseReason
	parent, sandbox             string
	leased                      uint64
}

func (a Agent) decided() decision { return decidedFrom(a.Record) }

func decidedFrom(r agents.Record) decision {
	d := decision{
		state: r.State, begun: r.Incarnations, undecided: r.Undecided, kill: r.Kill != nil, done: r.Done != nil, leased: r.LeaseSeq,
		pause: r.PauseWanted.GetReason(), woke: r.Pause != nil && r.Pause.Woken, parent: r.Parent, sandbox: r.SandboxID,
		unheld: r.Unheld(), asked: r.AwaitsApproval(),
	}
	if r.Incarnation != nil {
		d.running = r.Incarnation.N
	}
	if r.Pause != nil {
		d.paused = r.Pause.Reason
	}
	return d
}

// RequestKill records the wish to end an agent. A stronger wish replaces a weaker one, and so
// does one that says what becomes of the children. It does nothing to an agent that has ended.
func (l *Ledger) RequestKill(ctx context.Context, id string, kill *agboxv1.AgentKill) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		if t.a.Over() {
			return errNothing
		}
		wish := agents.Stronger(t.a.Kill, kill)
		if wish == nil {
			return errNothing
		}
		return t.append(id, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED, Details: &agboxv1.AgentEvent_Kill{Kill: wish},
		})
	})
}

// ResolveAgent decides about an orphaned agent: it is woken, or it ends. An agent that was
// woken before stays woken.
func (l *Ledger) ResolveAgent(ctx context.Context, id string, verdict agboxv1.AgentVerdict) (Agent, error) {
	return l.requestOf(ctx, id, func(t *agentTxn) error {
		switch reap := verdict == agboxv1.AgentVerdict_AGENT_VERDICT_REAP; {
		case t.a.State != agents.Paused || t.a.Pause.Reason != agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
			return notOrphaned(t.a)
		case !reap && t.a.Pause.Woken:
			return errNothing
		case !t.a.Orphaned():
			return cannot(t.a, "reaped", fmt.Sprintf("its next program has begun, and \"agbox agent kill %s\" ends it", t.a.Called()))
		case reap:
			return t.append(id, agents.Reaped("A user decided to reap it after this loss: "+t.a.Pause.Message))
		}
		return t.wake(&agboxv1.AgentWake{By: "a user"})
	})
}

// isRoot refuses a change of the agent init.
func isRoot() error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is the root of all agents; it never runs and never ends. Name another agent.", agents.Init).With("agent_id", agents.Init)
}

// notOrphaned refuses a decision about a loss that is not due, and says what is possible instead.
func notOrphaned(a Agent) error {
	advice := fmt.Sprintf("\"agbox agent kill %s\" ends it", a.Called())
	switch {
	case a.Over():
		advice = "spawn a new agent to repeat its work"
	case a.Loss == "":
	case a.AwaitsApproval():
		advice = fmt.Sprintf("first \"agbox agent approve %s\" or \"agbox agent deny %[1]s\" decides what it was asked", a.Called())
	case a.Suspended():
		advice = fmt.Sprintf("first \"agbox agent hold %s\" holds it", a.Called())
	default:
		advice = fmt.Sprintf("first \"agbox agent resume %s\" ends its pause", a.Called())
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
		"Agent %s is %s, and only an ORPHANED agent can be resolved; %s.", a.Called(), a.Word(), advice).With("agent_id", a.ID)
}
