package execs

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/ids"
)

// Main returns the container's own command that the sandbox's linked supervisor has run
// in this life. It returns nil if there is none, or this link has already recorded it.
func (r *Runner) Main(sandboxID string) *ledger.MainExec {
	lk, err := r.links.Get(sandboxID)
	if err != nil || lk.MainDecided.Load() {
		return nil
	}
	id := lk.Conn.MainExecID()
	// Another id could be that of another exec.
	if !ids.IsMain(sandboxID, id) {
		return nil
	}
	return &ledger.MainExec{Request: mainRequest(sandboxID, id, lk.Boot), BootID: lk.Conn.BootID()}
}

// mainRequest is the request that would have created the container's own command.
func mainRequest(sandboxID, execID string, boot *guestv1.BootConfig) *agboxv1.CreateExecRequest {
	return &agboxv1.CreateExecRequest{
		SandboxId: sandboxID, ExecId: execID, Name: ledger.MainName,
		Command: boot.GetCommand(), Cwd: boot.GetCwd(), User: boot.GetUser(),
	}
}

// MainRecorded must be called when the ledger has decided about the result of Main.
// recorded means that it has a record. The command may have ended before it was recorded,
// when its end was ignored. So the supervisor is queried once more.
func (r *Runner) MainRecorded(main *ledger.MainExec, recorded bool) {
	lk, err := r.links.Get(main.Request.GetSandboxId())
	if err != nil || lk.Conn.BootID() != main.BootID {
		return // the next link queries every exec that is recorded as running
	}
	lk.MainDecided.Store(true)
	if !recorded {
		r.log.Info("the sandbox's own command has no record: its exec id was given away before",
			"sandbox_id", main.Request.GetSandboxId(), "exec_id", main.Request.GetExecId())
		return
	}
	// Starting an exec that the supervisor has already started only returns its record.
	r.links.Go(func(ctx context.Context) { r.start(ctx, lk, main.Request) })
}

// Release lets the container's own command start, which was held back until its files
// were copied in. If there is no link, the caller makes one first.
func (r *Runner) Release(ctx context.Context, sandboxID string) error {
	lk, err := r.links.Get(sandboxID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	return lk.Conn.Release(ctx)
}
