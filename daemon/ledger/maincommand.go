package ledger

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/store"
)

// MainName is the name of every exec that is a container's own command.
const MainName = "main"

// MainExec is the container's own command in one life of its supervisor. The supervisor
// has already started it.
type MainExec struct {
	// Request is a request that would create it, with the exact id of its sandbox.
	Request *agboxv1.CreateExecRequest
	// BootID is the life of the supervisor.
	BootID string
}

// AcceptMain records the container's own command and, in the same transaction, the event
// ev, which may be nil. ev was decided from seen, for example that the sandbox is READY.
// As with Emit, nothing happens if the record has changed since.
//
// known means that this exec has a record now, from this call or an earlier one. The id
// may also belong to an exec of another sandbox, whose caller chose it. Then the command
// has no record, and the event is appended anyway.
func (l *Ledger) AcceptMain(ctx context.Context, seen machine.Record, ev *agboxv1.SandboxEvent, main *MainExec) (known, taken bool, err error) {
	if ev == nil { // usually the daemon has restarted and everything is recorded: no commit is needed
		err = l.store.View(ctx, func(tx *store.Tx) error {
			known, taken = mainKnown(tx, seen.ID, main.Request.GetExecId())
			return nil
		})
		if err != nil || known || taken {
			return known, taken, err
		}
	}
	_, err = l.update(ctx, seen.ID, func(t *txn) error {
		known, taken = false, false
		if t.sb.overtook(seen) {
			return errNothing
		}
		if ev != nil {
			if err := t.append(seen.ID, ev); err != nil {
				return err
			}
		}
		known, taken = mainKnown(t.tx, seen.ID, main.Request.GetExecId())
		if !known && !taken {
			known = true
			return t.acceptExec(main.Request, &agboxv1.ExecEventDetails{
				SupervisorBootId: main.BootID, Name: main.Request.GetName(), Main: true,
			})
		}
		if len(t.events) == 0 {
			return errNothing
		}
		return nil
	})
	return known, taken, err
}

// NextMainRun returns the number of the first run of a sandbox's own command whose exec id
// is free.
func (l *Ledger) NextMainRun(ctx context.Context, sandboxID string) (run uint32, err error) {
	main := ids.Main(sandboxID)
	err = l.store.View(ctx, func(tx *store.Tx) error {
		for run = 1; ; run++ {
			if _, reserved := tx.ExecReserved(ids.MainRun(main, run)); !reserved {
				return nil
			}
		}
	})
	return run, err
}

// mainKnown reports whether the exec has a record. Otherwise taken means that its id was
// used by another sandbox's exec, or by one that has expired.
func mainKnown(tx *store.Tx, sandboxID, execID string) (known, taken bool) {
	if _, reserved := tx.ExecReserved(execID); !reserved {
		return false, false
	}
	_, err := tx.ExecConfig(sandboxID, execID)
	return err == nil, err != nil
}
