package ledger

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// AcceptHook accepts a hook of the sandbox, as AcceptExec accepts a caller's exec, but
// also before the sandbox is READY. The exec id is derived from the hook. again means
// that the hook was accepted before, whether it runs or has ended.
func (l *Ledger) AcceptHook(ctx context.Context, req *agboxv1.CreateExecRequest, bootID string, hook machine.Hook) (again bool, err error) {
	sandboxID, execID := req.GetSandboxId(), req.GetExecId()
	_, err = l.update(ctx, sandboxID, func(t *txn) error {
		again = false
		if _, taken := t.tx.ExecReserved(execID); taken {
			again = true
			return errNothing
		}
		switch {
		case !t.sb.Exists():
			return notFound(sandboxID)
		case t.sb.State != machine.Pending && t.sb.State != machine.Ready || t.sb.Want != machine.WantRunning:
			return NotReady(t.sb.Record)
		}
		return t.acceptExec(req, &agboxv1.ExecEventDetails{
			SupervisorBootId: bootID,
			Hook:             &agboxv1.HookRef{Service: hook.Service, Start: hook.Start, Index: hook.Index},
		})
	})
	return again, err
}
