package execs

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// RunHook has one of the sandbox's own commands run. The request carries an exec
// id that is made from the hook, so that the same hook runs once whoever asks again.
// It does not wait for a link: where there is none, the caller makes one first.
func (r *Runner) RunHook(ctx context.Context, req *agboxv1.CreateExecRequest, hook machine.Hook) error {
	lk, err := r.links.Get(req.GetSandboxId())
	if err != nil {
		return err
	}
	again, err := r.ledger.AcceptHook(ctx, req, lk.Conn.BootID(), hook)
	if err != nil || again {
		return err
	}
	r.links.Go(func(ctx context.Context) { r.start(ctx, lk, req) })
	return nil
}
