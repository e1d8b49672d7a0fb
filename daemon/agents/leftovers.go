package agents

import (
	"errors"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/logs"
)

// RemoveLeft removes what an agent that has ended has left because a daemon was killed:
// meta.json, and the newest beats of its incarnations. removed is the number of files.
func (r *Runner) RemoveLeft(a ledger.Agent) (removed int, err error) {
	had, err := r.RemoveMeta(a.ID)
	if had {
		removed++
	}
	d, opened := logs.OpenDir(r.paths.SandboxLogs(a.SandboxID))
	if errors.Is(opened, logs.ErrNotExist) {
		return removed, err
	}
	if opened != nil {
		return removed, errors.Join(err, opened)
	}
	defer func() { _ = d.Close() }()
	for n := range a.Incarnations {
		had, failed := d.RemoveBeat(agent.ExecID(a.ID, n+1))
		if errors.Is(failed, logs.ErrTampered) {
			failed = nil // root in the sandbox has put it there, and it goes with the folder
		}
		if err = errors.Join(err, failed); had {
			removed++
		}
	}
	return removed, err
}
