package execs

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// RunHook runs a hook of the sandbox. The exec id in the request is derived from the
// hook, so the same hook runs only once, even if RunHook is called again. RunHook does
// not wait for a link; the caller makes one first.
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
