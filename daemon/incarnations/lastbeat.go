package incarnations

import (
	"errors"
	"time"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
)

// LastBeat returns the newest beat of the agent's running incarnation, or the zero time.
// If its supervisor cannot be asked, it is the one that was written to disk.
func (r *Runner) LastBeat(a ledger.Agent) time.Time {
	if a.Incarnation == nil {
		return time.Time{}
	}
	r.desk.mu.Lock()
	h, known := r.desk.heard[a.Incarnation.ExecID]
	r.desk.mu.Unlock()
	if known {
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
