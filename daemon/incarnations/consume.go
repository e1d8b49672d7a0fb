package incarnations

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Consume records what the agent's incarnation, which runs, has reported since the last
// time. Each row counts once, however often Consume is called: the events have their row
// numbers, and the ledger leaves those out that it has.
func (r *Runner) Consume(ctx context.Context, a ledger.Agent) error {
	a, last, err := r.lastPiece(ctx, a)
	if err == nil {
		_, err = r.record(ctx, a, last)
	}
	return err
}

// lastPiece records what the agent's incarnation has reported, one piece after the other, but
// for the last one. It returns that, and the agent as it is before it.
func (r *Runner) lastPiece(ctx context.Context, a ledger.Agent) (ledger.Agent, reports, error) {
	for {
		found := r.reports(a)
		err := r.take(a, found)
		if err != nil || !found.more {
			return a, found, err
		}
		if a, err = r.record(ctx, a, found); err != nil {
			return a, found, err
		}
	}
}

// record records one piece.
func (r *Runner) record(ctx context.Context, a ledger.Agent, found reports) (after ledger.Agent, err error) {
	execID := a.Incarnation.ExecID
	if events := found.ordered(); len(events) > 0 {
		if a, err = r.ledger.RecordReports(ctx, a.ID, ledger.Reports{Events: events, Sent: found.sent}); err != nil {
			return a, err
		}
		if len(found.checkpoints) > 0 {
			r.tidy(a, nil)
		}
	}
	r.advance(execID, found.at)
	return a, nil
}

// ordered returns all events in the order of their rows, after the totals of all rows.
func (r *reports) ordered() []*agboxv1.AgentEvent {
	row := func(ev *agboxv1.AgentEvent) uint64 {
		if ev.GetType() == agboxv1.AgentEventType_AGENT_PROGRESS {
			return 0
		}
		return ev.GetJournalUpto()
	}
	events := slices.Concat(r.events, r.checkpoints)
	slices.SortStableFunc(events, func(a, b *agboxv1.AgentEvent) int { return cmp.Compare(row(a), row(b)) })
	return events
}

// take copies the checkpoints of new reports to the folder of the agent, before they are
// recorded. A file that is not what was acknowledged is left out: its checkpoint is
// recorded, and the next incarnation falls back to the one before. Any other error is
// temporary, for example a full disk.
func (r *Runner) take(a ledger.Agent, found reports) error {
	inc := a.Incarnation
	for _, ev := range found.checkpoints {
		if ev.GetJournalUpto() <= inc.JournalUpto {
			continue
		}
		m := retention.CheckpointMark(ev.GetCheckpoint())
		err := r.checkpoints.Take(a.ID, inc.SandboxID, inc.ExecID, m)
		if errors.Is(err, retention.ErrCheckpointDamaged) {
			if !r.superseded(a, found.at, m) {
				r.log.Error("a checkpoint of an agent is damaged", "agent_id", a.ID, "exec_id", inc.ExecID, "checkpoint", m.Seq, "error", err)
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// superseded reports whether newer checkpoints have taken the place of one since the journal
// was read up to at.
func (r *Runner) superseded(a ledger.Agent, at place, m *journal.Mark) bool {
	now, err := readJournal(r.paths.SandboxLogs(a.Incarnation.SandboxID), a.Incarnation.ExecID, at.Tail, nil)
	return err == nil && now.Sum.Checkpoints.Newest().Seq >= m.Seq+logs.CheckpointSlots-1
}

// tidy removes files that are no longer needed: from the folder of an agent the checkpoints
// before the newest, and from the logs of an incarnation that has ended all, and its beat.
func (r *Runner) tidy(a ledger.Agent, ended *agents.Incarnation) {
	err := r.checkpoints.Keep(a.ID, a.Checkpoints)
	if ended != nil {
		err = errors.Join(err, removeSources(r.paths.SandboxLogs(ended.SandboxID), ended.ExecID))
	}
	if err != nil {
		r.log.Warn("old checkpoints and beats of an agent cannot be removed", "agent_id", a.ID, "error", err)
	}
}

// removeSources removes the files of an incarnation that has ended which nobody reads any
// more: its checkpoints and its newest beat.
func removeSources(dir, execID string) error {
	d, err := logs.OpenDir(dir)
	if errors.Is(err, logs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	_, err = d.RemoveBeat(execID)
	return errors.Join(err, d.RemoveCheckpoints(execID))
}

// advance remembers how far a journal was read.
func (r *Runner) advance(execID string, at place) {
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	k := r.desk.known[execID]
	k.read = &at
	r.desk.known[execID] = k
}
