package ledger

import (
	"context"
	"slices"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// updateAgent runs fn with the agent at its point of the write order, and returns the
// agent after the commit. What follows is committed with it: for the breaker of its class,
// for those that want leases it no longer has, for its parent and init, and the wake of an agent that
// becomes IDLE with unread messages.
func (l *Ledger) updateAgent(ctx context.Context, id string, fn func(*agentTxn) error, sent ...Sent) (after Agent, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) (err error) {
		before := l.agentIn(tx, id)
		if after, err = l.withinAgent(tx, id, fn); err != nil {
			return err
		}
		if err := l.post(tx, before, after, sent); err != nil {
			return err
		}
		if err := l.followLeases(tx, before, after); err != nil {
			return err
		}
		if err := l.wakeForUnread(tx, before, after); err != nil {
			return err
		}
		after = l.agentIn(tx, id)
		if err := l.notifyKin(tx, before, after); err != nil {
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

// requestOfAgent is updateAgent for a request of a user: it refuses an agent that does not exist,
// and init.
func (l *Ledger) requestOfAgent(ctx context.Context, id string, fn func(*agentTxn) error) (Agent, error) {
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

// EmitAgent appends events that were decided from the record seen, all or none. If the
// agent has changed since so that another decision is due, it appends nothing. Reports
// among the events are treated as by RecordReports.
func (l *Ledger) EmitAgent(ctx context.Context, seen agents.Record, events ...*agboxv1.AgentEvent) (Agent, error) {
	return l.EmitReports(ctx, seen, Reports{Events: events})
}

// EmitReports is EmitAgent with reports, which may have messages.
func (l *Ledger) EmitReports(ctx context.Context, seen agents.Record, reports Reports) (Agent, error) {
	return l.updateAgent(ctx, seen.ID, func(t *agentTxn) error {
		refused := func(ev *agboxv1.AgentEvent) bool { return !t.admits(ev) }
		if t.a.decided() != decidedFrom(seen) || slices.ContainsFunc(reports.Events, refused) {
			return errNothing
		}
		return t.appendAll(reports.Events)
	}, reports.Sent...)
}

// RecordReports appends what an incarnation has reported: events with journal_upto, the
// number of their row in its journal. It leaves out rows that were consumed before, and
// what is not possible now: reports of an incarnation that has ended, and rows that only
// somebody else than the supervisor can have written. Messages are delivered together with
// the event that consumes their rows.
func (l *Ledger) RecordReports(ctx context.Context, agentID string, reports Reports) (Agent, error) {
	return l.updateAgent(ctx, agentID, func(t *agentTxn) error { return t.appendAll(reports.Events) }, reports.Sent...)
}

// appendAll adds events of an agent; of the reports among them, those that RecordReports
// does not leave out.
func (t *agentTxn) appendAll(events []*agboxv1.AgentEvent) error {
	before, consumed := t.a.LastSequence, uint64(0)
	if t.a.Incarnation != nil {
		consumed = t.a.Incarnation.JournalUpto
	}
	for _, ev := range events {
		if row := ev.GetJournalUpto(); row > 0 && (row <= consumed || !agents.Legal(t.a.Record, ev)) {
			continue
		}
		if err := t.append(ev); err != nil {
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
