package execs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"syscall"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/logs"
)

// foundGrace is the time between SIGTERM and SIGKILL for an exec that was lost and must not go on.
const foundGrace = 2 * time.Second

// LostDue reports whether FindExecs has something to do in a linked sandbox.
func (r *Runner) LostDue(sandboxID string) bool {
	if sb, _ := r.ledger.Sandbox(sandboxID); len(sb.Lost) == 0 {
		return false
	}
	lk, err := r.links.Get(sandboxID)
	return err == nil && !lk.LostSought.Load()
}

// FindExecs takes up the execs of a linked sandbox that were recorded as lost and that its
// supervisor has. The link is dropped then: the next one asks for them, as after every outage.
//
// A hook may have run again, and an agent may have its next incarnation. What takes their place
// must not run beside them, so they are ended first, and only their ends are recorded. An agent
// does not go on with a process that it had lost: what that reported was collected for the last
// time, and its leases may have others by now. The next incarnation continues from the newest
// checkpoint. Only an incarnation whose loss no agent has heard of yet goes on.
func (r *Runner) FindExecs(ctx context.Context, sandboxID string) error {
	lk, err := r.links.Get(sandboxID)
	if err != nil {
		return nil //nolint:nilerr // the rules ask for a link first
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	sb, _ := r.ledger.Sandbox(sandboxID)
	dir, err := logs.OpenDir(r.paths.SandboxLogs(sandboxID))
	if err != nil && !noStatus(err) {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	var found []string
	for _, id := range slices.Sorted(maps.Keys(sb.Lost)) {
		is, err := r.findExec(ctx, dir, lk, sb.Lost[id])
		if err != nil {
			return err
		}
		if is {
			found = append(found, id)
		}
	}
	if len(found) == 0 {
		lk.LostSought.Store(true)
		return nil
	}
	if err := r.ledger.FindExecs(ctx, sandboxID, found); err != nil {
		return err
	}
	r.links.Drop(sandboxID)
	return nil
}

// findExec reports whether the supervisor has an exec that was lost. One that must not go on, or
// about which nothing can be recorded, is ended.
func (r *Runner) findExec(ctx context.Context, dir *logs.Dir, lk *links.Link, exec machine.Exec) (found bool, err error) {
	rec, err := r.kept(ctx, dir, lk, exec)
	if err != nil {
		return false, err
	}
	if rec != nil && (rec.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING || r.goesOn(lk.SandboxID, exec)) {
		return true, nil
	}
	end := lk.Conn.Cancel
	if _, ok := agent.OfExec(exec.ID); ok {
		end = lk.Conn.Reap
	}
	_, err = end(ctx, exec.ID, foundGrace)
	return rec != nil, err
}

// kept returns what the supervisor has written about an exec that was lost, if it has the exec:
// in its life of now, or with the end in the life that had the exec. Otherwise it returns nil.
func (r *Runner) kept(ctx context.Context, dir *logs.Dir, lk *links.Link, exec machine.Exec) (*guestv1.ExecRecord, error) {
	if forgotten, err := r.ledger.ExecForgotten(ctx, lk.SandboxID, exec.ID); err != nil || forgotten || dir == nil {
		return nil, err
	}
	rec, err := ReadStatus(dir, exec.ID)
	if failed := syscall.Errno(0); errors.As(err, &failed) && !noStatus(err) {
		return nil, err // of this host, and not of the container: it may pass
	}
	if err == nil {
		err = believable(exec, rec)
	}
	if err != nil {
		r.log.Info("an exec that was lost is not found", "sandbox_id", lk.SandboxID, "exec_id", exec.ID, "error", err)
		return nil, nil
	}
	if rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING && rec.GetBootId() != lk.Conn.BootID() {
		return nil, nil
	}
	return rec, nil
}

// noStatus reports whether an error says that there is no status file to be believed.
func noStatus(err error) bool {
	return errors.Is(err, logs.ErrNotExist) || errors.Is(err, logs.ErrTampered)
}

// goesOn reports whether nothing takes the place of an exec that was lost.
func (r *Runner) goesOn(sandboxID string, exec machine.Exec) bool {
	if exec.Hook != nil {
		return false
	}
	if _, current := r.ledger.AgentOf(sandboxID, exec.ID); current {
		return true
	}
	agentID, ok := agent.OfExec(exec.ID)
	if !ok {
		return true
	}
	_, known := r.ledger.Agent(agentID)
	return !known
}
