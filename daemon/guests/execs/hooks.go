package execs

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

// RunHook has one of the sandbox's own commands run. The request carries an exec
// id that is made from the hook, so that the same hook runs once whoever asks again.
// It does not wait for a link: where there is none, the caller makes one first.
func (r *Runner) RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error {
	lk, err := r.linked(req.GetSandboxId())
	if err != nil {
		return err
	}
	again, err := r.ledger.StartHook(ctx, req, lk.conn.BootID(), hook)
	if err != nil || again {
		return err
	}
	r.wg.Go(func() { r.start(r.ctx, lk, req) })
	return nil
}

// linked returns the link of a sandbox without waiting for one.
func (r *Runner) linked(sandboxID string) (*link, error) {
	r.mu.Lock()
	lk := r.links[sandboxID]
	r.mu.Unlock()
	if lk == nil {
		return nil, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
			"The supervisor of sandbox %s is not linked.", sandboxID).With("sandbox_id", sandboxID)
	}
	return lk, nil
}
