package ledger

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/store"
)

// MainName is the name of every exec that is a container's own command.
const MainName = "main"

// MainExec is the container's own command in one life of its supervisor. It runs
// already: the supervisor starts it by itself.
type MainExec struct {
	// Request is what would have created it, with the exact id of its sandbox.
	Request *agboxv1.CreateExecRequest
	// BootID is the life of the supervisor.
	BootID string
}

// AcceptMain records the container's own command and, in the same transaction, an
// event that came out of seen, such as that the sandbox is READY; ev may be nil.
// As with Emit, nothing happens if the record has moved since it was seen.
//
// known tells that this very exec has a record now, from this call or an earlier
// one. The id may also be taken by an exec of another sandbox, which its caller
// named so: then the command has no record, and the event is appended all the same.
func (l *Ledger) AcceptMain(ctx context.Context, seen machine.Record, ev *agboxv1.SandboxEvent, main *MainExec) (known, taken bool, err error) {
	if ev == nil { // mostly a daemon has restarted, and all is recorded: that needs no commit
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

// mainKnown tells whether the exec has a record, or else its id is given away: to
// another sandbox's exec, or to one that was forgotten since.
func mainKnown(tx *store.Tx, sandboxID, execID string) (known, taken bool) {
	if _, reserved := tx.ExecReserved(execID); !reserved {
		return false, false
	}
	_, err := tx.ExecConfig(sandboxID, execID)
	return err == nil, err != nil
}
