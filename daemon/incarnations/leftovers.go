package incarnations

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/logs"
)

// RemoveLeft removes what an agent that has ended has left because a daemon was killed:
// meta.json, and the newest beats of its incarnations. removed is the number of files.
func (r *Runner) RemoveLeft(a ledger.Agent) (removed int, err error) {
	had, err := r.RemoveMeta(a.ID)
	if had {
		removed++
	}
	for _, s := range a.Stays() {
		beats, failed := r.removeBeats(a.ID, s)
		removed, err = removed+beats, errors.Join(err, failed)
	}
	return removed, err
}

// removeBeats removes the newest beats of the incarnations that ran in a sandbox.
func (r *Runner) removeBeats(agentID string, s agents.Stay) (removed int, err error) {
	d, err := logs.OpenDir(r.paths.SandboxLogs(s.SandboxID))
	if errors.Is(err, logs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = d.Close() }()
	for n := s.First; n <= s.Last; n++ {
		had, failed := d.RemoveBeat(agents.ExecID(agentID, n))
		if errors.Is(failed, logs.ErrTampered) {
			failed = nil // root in the sandbox has put it there, and it goes with the folder
		}
		if err = errors.Join(err, failed); had {
			removed++
		}
	}
	return removed, err
}

// RemoveStrays removes the folders of agents that were never accepted: a daemon was killed
// between the copy of a checkpoint and the spawn that continues it. No spawn may be in progress.
func (r *Runner) RemoveStrays(ctx context.Context) error {
	folders, err := os.ReadDir(r.paths.Agents())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range folders {
		id := f.Name()
		if _, described := os.Lstat(r.paths.AgentMeta(id)); described == nil || !ids.Valid(id) {
			continue // it has run in a lost database, or is not ours
		}
		used, failed := r.ledger.AgentIDUsed(ctx, id)
		if failed == nil && !used {
			failed = r.checkpoints.Remove(id)
		}
		err = errors.Join(err, failed)
	}
	return err
}

// LastBeat returns the newest beat of the agent's running incarnation, or the zero time.
// If its supervisor cannot be asked, it is the one that was written to disk.
func (r *Runner) LastBeat(a ledger.Agent) time.Time {
	if a.Incarnation == nil {
		return time.Time{}
	}
	if h := r.desk.of(a.Incarnation.ExecID); h.news != nil {
		if !h.news.GetArmed() {
			return time.Time{}
		}
		return h.at.Add(-silence(h.news))
	}
	beat, err := readBeat(r.paths.SandboxLogs(a.Incarnation.SandboxID), a.Incarnation.ExecID)
	if err != nil {
		if !errors.Is(err, logs.ErrNotExist) {
			r.log.Warn("the last beat of an incarnation cannot be read", "agent_id", a.ID, "exec_id", a.Incarnation.ExecID, "error", err)
		}
		return time.Time{}
	}
	if at := time.UnixMilli(beat.At); at.Before(r.now()) {
		return at
	}
	return time.Time{}
}

func readBeat(dir, execID string) (journal.LastBeat, error) {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return journal.LastBeat{}, err
	}
	defer func() { _ = d.Close() }()
	raw, err := d.ReadBeat(execID)
	if err != nil {
		return journal.LastBeat{}, err
	}
	return journal.ReadLastBeat(raw)
}
