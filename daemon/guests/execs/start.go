package execs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Create accepts an exec. When it returns, the exec is committed and is being sent to its
// supervisor. The channel is closed when the exec was started or failed to start; its
// status says which. The request must have its exec id and the exact sandbox id.
func (r *Runner) Create(ctx context.Context, req *agboxv1.CreateExecRequest) (started <-chan struct{}, err error) {
	decided := make(chan struct{})
	again, err := r.ledger.RepeatedExec(ctx, req)
	if err != nil {
		return nil, err
	}
	if again { // the answer is the same, whatever the sandbox does now
		close(decided)
		return decided, nil
	}
	lk, err := r.links.Wait(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if err := lk.CheckLogs(); err != nil {
		r.links.Recheck(lk.SandboxID)
		return nil, err
	}
	if err := takesInput(ctx, lk, req); err != nil {
		return nil, err
	}
	if err := takesLimits(lk, req); err != nil {
		return nil, err
	}
	if err := r.takesAgent(lk, req); err != nil {
		return nil, err
	}
	again, err = r.ledger.AcceptExec(ctx, req, lk.Conn.BootID())
	if err != nil {
		return nil, err
	}
	if again {
		close(decided)
		return decided, nil
	}
	// The exec is accepted, so it must be started even if the caller goes away.
	if !r.links.Go(func(ctx context.Context) {
		defer close(decided)
		r.start(ctx, lk, req)
	}) {
		close(decided) // the next daemon starts it
	}
	return decided, nil
}

// start sends an accepted exec to its supervisor. If the link breaks, or is already
// broken, the next link queries the exec. If that link is already made and made its query
// before the exec was accepted, start sends the exec over it.
func (r *Runner) start(ctx context.Context, lk *links.Link, req *agboxv1.CreateExecRequest) {
	call, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	what := startRequest(req, lk.Boot())
	if a, ok := r.ledger.AgentOf(lk.SandboxID, req.GetExecId()); ok {
		what.Agent = agentBoot(a)
		children, spent := r.ledger.ChildrenBudget(a), r.ledger.SpentByChildren(a)
		what.Agent.SpentInputTokens, what.Agent.SpentCostMicroUsd = spent.InputTokens, spent.CostMicroUSD
		what.Agent.ChildrenInputTokens, what.Agent.ChildrenCostMicroUsd = children.InputTokens, children.CostMicroUSD
		what.Agent.JournalBytes = r.journalBytes(a)
		if err := r.addWork(call, a, what.Agent); err != nil {
			r.log.Error("the work of an agent cannot be read", "sandbox_id", lk.SandboxID, "agent_id", a.ID, "error", err)
			return // the next link asks for the exec again
		}
	}
	rec, err := lk.Conn.Start(call, what)
	if err != nil && ctx.Err() != nil {
		return // the next daemon queries it and sends it if necessary
	}
	if err != nil {
		r.log.Warn("an exec could not be handed to its supervisor; the link is made anew",
			"sandbox_id", lk.SandboxID, "exec_id", req.GetExecId(), "error", err)
		lk.Break()
		if next, err := r.links.Get(lk.SandboxID); err == nil && next != lk && !next.Asked(req.GetExecId()) {
			r.startLate(ctx, next, req.GetExecId())
		}
		return
	}
	r.record(ctx, lk, rec)
}

// startLate decides about an exec that was accepted over an earlier link and did not
// reach the supervisor over that link.
func (r *Runner) startLate(ctx context.Context, lk *links.Link, execID string) {
	sb, _ := r.ledger.Sandbox(lk.SandboxID)
	exec, running := sb.Execs[execID]
	switch {
	case !running:
	case exec.BootID == "": // adopted: it was started before, and never is again
		r.end(ctx, lk.SandboxID, lostExec(exec.ID, "The supervisor of the sandbox does not know the command, which was adopted after the loss of the database"))
	case exec.Found: // something may have taken its place, and only its status file said that it ran
		r.end(ctx, lk.SandboxID, lostExec(exec.ID, "The supervisor of the sandbox does not know the command, whose status says that it was started"))
	case exec.BootID == lk.Conn.BootID():
		req, err := r.ledger.RevealedExec(ctx, lk.SandboxID, exec.ID)
		if fault.ReasonOf(err) == agboxv1.ErrorReason_SECRETS_UNREADABLE {
			r.end(ctx, lk.SandboxID, failedExec(exec.ID, fault.ReasonOf(err), err.Error()))
			return
		}
		if err != nil {
			r.log.Error("an accepted exec cannot be read", "sandbox_id", lk.SandboxID, "exec_id", exec.ID, "error", err)
			return
		}
		r.start(ctx, lk, req)
	default:
		r.end(ctx, lk.SandboxID, lostExec(exec.ID, "The sandbox was restarted while the command was being started"))
	}
}

// startRequest is what the supervisor gets. It is where a secret variable of a command enters a
// sandbox: docs/security.md lists such places.
func startRequest(req *agboxv1.CreateExecRequest, boot *guestv1.BootConfig) *guestv1.StartRequest {
	out := &guestv1.StartRequest{
		ExecId:  req.GetExecId(),
		Name:    req.GetName(),
		Command: req.GetCommand(),
		Cwd:     req.GetCwd(),
		User:    req.GetUser(),
		Tty:     req.GetTty(),
		Stdin:   req.GetStdin(),
		Rows:    req.GetTerminalSize().GetRows(),
		Columns: req.GetTerminalSize().GetColumns(),

		SecretEnvs:  secrets.Names(req.GetEnvOverrides(), req.GetSecretEnvs()),
		ShowSecrets: req.GetShowSecrets(),
	}
	limit(out, req)
	if out.Cwd == "" {
		out.Cwd = execDir(boot)
	}
	if out.User == "" {
		out.User = boot.GetUser()
	}
	for _, key := range slices.Sorted(maps.Keys(req.GetEnvOverrides())) {
		out.Env = append(out.Env, key+"="+req.GetEnvOverrides()[key])
	}
	return out
}

// execDir is the working directory of execs that name none.
func execDir(boot *guestv1.BootConfig) string { return cmp.Or(boot.GetExecCwd(), boot.GetCwd()) }

// Report handles a report of a supervisor.
func (r *Runner) Report(ctx context.Context, lk *links.Link, rec *guestv1.ExecRecord) {
	sb, _ := r.ledger.Sandbox(lk.SandboxID)
	exec, running := sb.Execs[rec.GetExecId()]
	if !running {
		return // ended, or not ours: it costs no transaction
	}
	if rec.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_UNKNOWN {
		r.record(ctx, lk, rec)
		return
	}
	if exec.Main { // only the supervisor starts it
		r.end(ctx, lk.SandboxID, lostExec(rec.GetExecId(), "The supervisor of the sandbox knows nothing of its main command"))
		return
	}
	r.Missed(ctx, lk, rec.GetExecId())
}

// Missed decides about an accepted exec that the supervisor does not know. It uses
// another goroutine than the link's, because the answer to Start arrives after all
// reports that the link has not handled yet.
func (r *Runner) Missed(_ context.Context, lk *links.Link, execID string) {
	sb, _ := r.ledger.Sandbox(lk.SandboxID)
	if _, running := sb.Execs[execID]; !running || !lk.Miss(execID) {
		return // a flood of reports must not become a flood of starts
	}
	r.links.Go(func(ctx context.Context) { r.startLate(ctx, lk, execID) })
}

// record commits a supervisor's report of an exec if the exec has ended.
func (r *Runner) record(ctx context.Context, lk *links.Link, rec *guestv1.ExecRecord) {
	switch {
	case rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING && rec.GetBootId() != lk.Conn.BootID():
		r.end(ctx, lk.SandboxID, lostExec(rec.GetExecId(), "The sandbox was restarted while the command ran"))
	case rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING:
	default:
		finishing, cancel := finishing(ctx)
		defer cancel()
		r.end(ctx, lk.SandboxID, r.ending(finishing, lk.SandboxID, rec))
	}
}

// finishing bounds the recording of an end. Links.Close waits for it, so that a reported
// end is recorded completely.
func finishing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), links.CallTimeout)
}

// end commits the end of an exec. If the store cannot be written, the exec stays recorded
// as running. Its status file remains, and the next link or look reports the end again.
func (r *Runner) end(ctx context.Context, sandboxID string, d *agboxv1.ExecEventDetails) {
	ctx, cancel := finishing(ctx)
	defer cancel()
	if err := r.ledger.EndExec(ctx, sandboxID, d); err != nil {
		r.log.Error("the end of an exec could not be recorded; it will be tried again",
			"sandbox_id", sandboxID, "exec_id", d.GetExecId(), "error", err)
		r.retryEnd(sandboxID)
	}
}

// endRetry is the pause before another attempt to record the end of an exec.
const endRetry = time.Second

// retryEnd breaks the sandbox's link after a pause. The next link queries every exec that
// is recorded as running.
func (r *Runner) retryEnd(sandboxID string) {
	r.links.Go(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(endRetry):
		}
		if lk, err := r.links.Get(sandboxID); err == nil {
			lk.Break()
		}
	})
}

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
	return &ledger.MainExec{Request: mainRequest(sandboxID, id, lk.Boot()), BootID: lk.Conn.BootID()}
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

// takesInput refuses an exec with input or a terminal if the supervisor is too old for
// them. It would start the command without them.
func takesInput(ctx context.Context, lk *links.Link, req *agboxv1.CreateExecRequest) error {
	if !req.GetTty() && !req.GetStdin() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	_, _, err := lk.Conn.WriteStdin(ctx, req.GetExecId(), "probe", 0, nil, false)
	if errdefs.IsNotImplemented(err) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
			"Sandbox %s was started by an older agbox, which knew neither standard input nor terminals. Stop and start the sandbox, or create a new one.",
			req.GetSandboxId()).With("sandbox_id", req.GetSandboxId())
	}
	return nil
}
