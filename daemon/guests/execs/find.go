package execs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/logs"
)

// foundGrace is the time between SIGTERM and SIGKILL for an exec that was lost and must not go on.
const foundGrace = 2 * time.Second

// LostDue reports whether FindExecs has something to do. Without a link nobody can tell yet.
func (r *Runner) LostDue(sandboxID string) bool {
	if sb, _ := r.ledger.Sandbox(sandboxID); len(sb.Lost) == 0 {
		return false
	}
	lk, err := r.links.Get(sandboxID)
	return err != nil || !lk.LostSought.Load()
}

// FindExecs takes up the execs of a linked sandbox that were recorded as lost and that its
// supervisor has. The link is dropped then: the next one asks for them, as after every outage.
//
// A hook may have run again, and an agent may have its next incarnation. What takes their place
// must not run beside them, so they are ended first, and only their ends are recorded: FindExecs
// fails while one of them runs, and must be called again. An agent does not go on with a process
// that it had lost: what that reported was collected for the last time, and its leases may have
// others by now. The next incarnation continues from the newest checkpoint. Only an incarnation
// whose loss no agent has heard of yet goes on.
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
	var failed error
	for _, id := range slices.Sorted(maps.Keys(sb.Lost)) {
		is, err := r.findExec(ctx, dir, lk, sb.Lost[id])
		failed = errors.Join(failed, err)
		if is {
			found = append(found, id)
		}
	}
	if failed != nil {
		return failed
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
// about which nothing can be recorded, is ended. While it runs, findExec fails.
func (r *Runner) findExec(ctx context.Context, dir *logs.Dir, lk *links.Link, exec machine.Exec) (found bool, err error) {
	rec, err := r.kept(ctx, dir, lk, exec)
	if err != nil || ended(rec) {
		return rec != nil, err
	}
	if rec != nil {
		if goesOn, err := r.goesOn(ctx, lk.SandboxID, exec); err != nil || goesOn {
			return goesOn, err
		}
	}
	end := lk.Conn.Cancel
	if _, ok := agents.OfExec(exec.ID); ok {
		end = lk.Conn.Reap
	}
	runs, err := end(ctx, exec.ID, foundGrace)
	if runs {
		err = fmt.Errorf("exec %s was lost, and runs; it is being ended: %w", exec.ID, errdefs.ErrUnavailable)
	}
	if err != nil || rec == nil {
		return false, err
	}
	rec, err = r.kept(ctx, dir, lk, exec) // it may have ended since
	return ended(rec), err
}

func ended(rec *guestv1.ExecRecord) bool {
	return rec != nil && rec.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_RUNNING
}

// kept returns what the supervisor of now has written about an exec that was lost and that it was
// given. It returns nil if there is nothing of that kind, or the exec may not return. The status
// of an earlier life is not believed: a later one can write it. Nor is that of an adopted exec,
// whose life is not known.
func (r *Runner) kept(ctx context.Context, dir *logs.Dir, lk *links.Link, exec machine.Exec) (*guestv1.ExecRecord, error) {
	if !exec.MayReturn || exec.BootID != lk.Conn.BootID() || dir == nil {
		return nil, nil
	}
	if forgotten, err := r.ledger.ExecForgotten(ctx, lk.SandboxID, exec.ID); err != nil || forgotten {
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
	return rec, nil
}

// noStatus reports whether an error says that there is no status file to be believed. A container
// can take the rights on its files from a daemon that is not root.
func noStatus(err error) bool {
	return errors.Is(err, logs.ErrNotExist) || errors.Is(err, logs.ErrTampered) || errors.Is(err, fs.ErrPermission)
}

// goesOn reports whether nothing takes the place of an exec that was lost.
func (r *Runner) goesOn(ctx context.Context, sandboxID string, exec machine.Exec) (bool, error) {
	if exec.Hook != nil {
		return false, nil
	}
	if _, current := r.ledger.AgentOf(sandboxID, exec.ID); current {
		return true, nil
	}
	agentID, ok := agents.OfExec(exec.ID)
	if !ok {
		return true, nil
	}
	used, err := r.ledger.AgentIDUsed(ctx, agentID)
	return !used, err
}
