package incarnations

import (
	"cmp"
	"errors"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/checkpoints"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
)

// kinds has the kinds of checkpoints by their names in a journal.
var kinds = map[string]agboxv1.CheckpointKind{
	journal.TurnCheckpoint:  agboxv1.CheckpointKind_CHECKPOINT_KIND_TURN,
	journal.StepCheckpoint:  agboxv1.CheckpointKind_CHECKPOINT_KIND_STEP,
	journal.PauseCheckpoint: agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE,
}

// saved returns the event of a checkpoint.
func saved(m *journal.Mark) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_CHECKPOINT,
		Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{
			Seq: m.Seq, CheckpointId: m.ID, Kind: kinds[m.Kind], Crc32: m.CRC32, Bytes: m.Bytes,
			Turn: m.Turn, Step: m.Step, ResumePoint: m.ResumePoint, Format: checkpoint.Version,
		}},
	}
}

// keepCheckpoint adds the event of a checkpoint. Only the newest ones are kept: there are no
// files of the others.
func (r *reports) keepCheckpoint(ev *agboxv1.AgentEvent) {
	r.checkpoints = append(r.checkpoints, ev)
	if len(r.checkpoints) > agents.KeptCheckpoints {
		r.checkpoints = slices.Delete(r.checkpoints, 0, 1)
	}
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
		m := checkpoints.Mark(ev.GetCheckpoint())
		err := r.checkpoints.Take(a.ID, inc.SandboxID, inc.ExecID, m)
		if errors.Is(err, checkpoints.ErrDamaged) {
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
