package ledger

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// AcceptExec accepts an exec: id, request and EXEC_STARTED are one transaction. The
// request must have its exec id and the exact sandbox id. bootID is the life of the
// supervisor that will be asked. again means that the same request with the same key was accepted before.
func (l *Ledger) AcceptExec(ctx context.Context, req *agboxv1.CreateExecRequest, bootID string) (again bool, err error) {
	sandboxID, execID := req.GetSandboxId(), req.GetExecId()
	if err := l.keyForExec(ctx, req); err != nil {
		return false, err
	}
	_, err = l.update(ctx, sandboxID, func(t *txn) error {
		again = false
		if err := t.checkExecKey(req); err != nil {
			return err
		}
		if _, taken := t.tx.ExecReserved(execID); taken {
			again = true
			return t.sameExec(req)
		}
		if err := t.mayExec(req); err != nil {
			return err
		}
		return t.acceptExec(req, &agboxv1.ExecEventDetails{SupervisorBootId: bootID, Name: req.GetName()})
	})
	if errdefs.IsNotFound(err) {
		err = l.NotLiving(ctx, sandboxID)
	}
	return again, err
}

// acceptExec records an exec, whose id must be free, with its request and as running. d
// has the other details of EXEC_STARTED.
func (t *txn) acceptExec(req *agboxv1.CreateExecRequest, d *agboxv1.ExecEventDetails) error {
	sandboxID, execID := req.GetSandboxId(), req.GetExecId()
	if err := t.tx.ReserveExec(execID, t.l.now()); err != nil {
		return err
	}
	if err := t.tx.PutExecConfig(sandboxID, execID, req); err != nil {
		return err
	}
	if key := req.GetRequestKey(); key != "" {
		if err := t.tx.PutExecKey(execID, key); err != nil {
			return err
		}
	}
	d.ExecId, d.ExecState = execID, agboxv1.ExecState_EXEC_STATE_RUNNING
	return t.append(execEvent(agboxv1.EventType_EXEC_STARTED, d))
}

func (t *txn) mayExec(req *agboxv1.CreateExecRequest) error {
	id := req.GetSandboxId()
	switch {
	case !t.sb.Exists():
		return notFound(id)
	case t.sb.State != machine.Ready || t.sb.Want != machine.WantRunning:
		return NotReady(t.sb.Record)
	}
	for _, e := range t.sb.Execs {
		if req.GetName() != "" && e.Name == req.GetName() {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_EXEC_NAME_EXISTS,
				"Exec %s of this sandbox runs under the name %q; choose another name or wait for it to end.", e.ID, e.Name).
				With("exec_id", e.ID)
		}
	}
	for _, e := range t.sb.Lost {
		if req.GetName() != "" && e.Name == req.GetName() && e.MayReturn {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_EXEC_NAME_EXISTS,
				"Exec %s of this sandbox was lost under the name %q, and may still be found; choose another name.", e.ID, e.Name).
				With("exec_id", e.ID)
		}
	}
	return nil
}

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
			Hook:             &agboxv1.HookRef{Service: hook.Service, Start: hook.Start, Index: hook.Index, Prepare: hook.Prepare},
		})
	})
	return again, err
}

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
			if err := t.append(ev); err != nil {
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

// mainKnown reports whether the exec has a record. Otherwise taken means that its id was
// used by another sandbox's exec, or by one that has expired.
func mainKnown(tx *store.Tx, sandboxID, execID string) (known, taken bool) {
	if _, reserved := tx.ExecReserved(execID); !reserved {
		return false, false
	}
	_, err := tx.ExecConfig(sandboxID, execID)
	return err == nil, err != nil
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

// EndExec records how an exec ended. It ignores an exec that is not running, because its
// status is set only once.
func (l *Ledger) EndExec(ctx context.Context, sandboxID string, details *agboxv1.ExecEventDetails) error {
	_, err := l.update(ctx, sandboxID, func(t *txn) error {
		exec, running := t.sb.Execs[details.GetExecId()]
		if !running {
			return errNothing
		}
		return t.append(execEnded(details, exec.Main))
	})
	return err
}

// FindExecs takes back that execs were recorded as lost. It leaves out those that are not, or
// whose records are not kept any more, and does nothing in a sandbox that is to end.
func (l *Ledger) FindExecs(ctx context.Context, sandboxID string, execIDs []string) error {
	_, err := l.update(ctx, sandboxID, func(t *txn) error {
		for _, id := range execIDs {
			exec, lost := t.sb.Lost[id]
			if !lost || !exec.MayReturn || !t.tx.HasExec(sandboxID, id) || !machine.Legal(t.sb.Record, agboxv1.EventType_EXEC_FOUND) {
				continue
			}
			err := t.append(execEvent(agboxv1.EventType_EXEC_FOUND, &agboxv1.ExecEventDetails{
				ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_RUNNING, Name: exec.Name, Main: exec.Main,
				StartedAt: timestamppb.New(exec.StartedAt), SupervisorBootId: exec.BootID,
			}))
			if err != nil {
				return err
			}
		}
		if len(t.events) == 0 {
			return errNothing
		}
		return nil
	})
	return err
}

// execEnded is the last event of an exec. It changes details.
func execEnded(details *agboxv1.ExecEventDetails, main bool) *agboxv1.SandboxEvent {
	details.Main = main
	return execEvent(endEvent(details.GetExecState()), details)
}

func endEvent(state agboxv1.ExecState) agboxv1.EventType {
	switch state {
	case agboxv1.ExecState_EXEC_STATE_FINISHED:
		return agboxv1.EventType_EXEC_FINISHED
	case agboxv1.ExecState_EXEC_STATE_CANCELLED:
		return agboxv1.EventType_EXEC_CANCELLED
	}
	return agboxv1.EventType_EXEC_FAILED
}

// Ended sets the end time of an exec that left no record.
func Ended(d *agboxv1.ExecEventDetails, at time.Time) *agboxv1.ExecEventDetails {
	if d.FinishedAt == nil {
		d.FinishedAt = timestamppb.New(at)
	}
	return d
}

// RepeatedExec reports whether the same request with the same key was accepted before.
func (l *Ledger) RepeatedExec(ctx context.Context, req *agboxv1.CreateExecRequest) (again bool, err error) {
	if req.GetRequestKey() == "" {
		return false, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		if tx.ExecOfKey(req.GetRequestKey()) != req.GetExecId() {
			return nil
		}
		again, _ = tx.SameExecConfig(req.GetSandboxId(), req.GetExecId(), req) // an unreadable one is compared again by AcceptExec
		return nil
	})
	return again, err
}

// SandboxOfRepeated returns the sandbox of the exec that a request with this key has made. It is empty if
// no request did.
func (l *Ledger) SandboxOfRepeated(ctx context.Context, key, execID string) (string, error) {
	return look(ctx, l, func(tx *store.Tx) (sandboxID string) {
		if tx.ExecOfKey(key) == execID {
			sandboxID, _ = l.keptExec(tx, execID)
		}
		return sandboxID
	})
}

// checkExecKey refuses a key that belongs to another exec.
func (t *txn) checkExecKey(req *agboxv1.CreateExecRequest) error {
	if req.GetRequestKey() == "" {
		return nil
	}
	if of := t.tx.ExecOfKey(req.GetRequestKey()); of != "" && of != req.GetExecId() {
		return keyReused(req.GetRequestKey()).With("exec_id", of)
	}
	return nil
}

// sameExec handles a create whose id is taken. It accepts a repetition of the same
// request with the same key and refuses any other one.
func (t *txn) sameExec(req *agboxv1.CreateExecRequest) error {
	key, id := req.GetRequestKey(), req.GetExecId()
	if key == "" || t.tx.ExecOfKey(key) != id {
		return execIDTaken(id)
	}
	same, err := t.tx.SameExecConfig(req.GetSandboxId(), id, req)
	switch {
	case same:
		return errNothing
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case key == id:
		return execIDTaken(id)
	}
	return keyReused(key).With("exec_id", id)
}

// NotLiving is the error for an exec in a sandbox that Sandbox does not return, because
// it is deleted, unknown or unreadable.
func (l *Ledger) NotLiving(ctx context.Context, id string) error {
	past, err := l.Past(ctx, id)
	if err != nil {
		return err
	}
	return NotReady(past.Record)
}

// closedChan is the channel for execs that have ended.
var closedChan = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// ExecDone returns a channel that is closed once the exec does not run.
func (l *Ledger) ExecDone(execID string) <-chan struct{} {
	l.sandboxes.mu.RLock()
	defer l.sandboxes.mu.RUnlock()
	if r, running := l.sandboxes.running[execID]; running {
		return r.done
	}
	return closedChan
}

// ExecRequest returns the request that created an exec, with a placeholder for each secret
// value.
func (l *Ledger) ExecRequest(ctx context.Context, sandboxID, execID string) (*agboxv1.CreateExecRequest, error) {
	return view(ctx, l, func(tx *store.Tx) (*agboxv1.CreateExecRequest, error) { return tx.ExecConfig(sandboxID, execID) })
}

// Exec returns the status of one exec, running or ended, from the store.
func (l *Ledger) Exec(ctx context.Context, sandboxID, execID string) (*agboxv1.ExecStatus, error) {
	return view(ctx, l, func(tx *store.Tx) (*agboxv1.ExecStatus, error) { return readExec(tx, sandboxID, execID) })
}

// ExecForgotten reports whether an exec was accepted in a sandbox and its record is not kept any
// more. Its logs are gone then too.
func (l *Ledger) ExecForgotten(ctx context.Context, sandboxID, execID string) (forgotten bool, err error) {
	return look(ctx, l, func(tx *store.Tx) bool {
		_, used := tx.ExecReserved(execID)
		return used && !tx.HasExec(sandboxID, execID)
	})
}

// Execs returns a page of the execs of a sandbox, ordered by id.
func (l *Ledger) Execs(ctx context.Context, sandboxID, after string, limit int) ([]*agboxv1.ExecStatus, error) {
	var page []*agboxv1.ExecStatus
	err := l.store.View(ctx, func(tx *store.Tx) error {
		if !l.listed(tx, sandboxID, after) {
			return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "page_token: %q is not one that ListExecs has given.", after)
		}
		for _, id := range tx.ExecIDs(sandboxID, after, limit) {
			status, err := readExec(tx, sandboxID, id)
			if err != nil {
				return err
			}
			page = append(page, status)
		}
		return nil
	})
	return page, err
}

// listed reports whether a page may end with an exec: one of the sandbox, or one whose record
// retention has removed since. A list begins after "".
func (l *Ledger) listed(tx *store.Tx, sandboxID, execID string) bool {
	if execID == "" || tx.HasExec(sandboxID, execID) {
		return true
	}
	_, used := tx.ExecReserved(execID)
	_, elsewhere := l.keptExec(tx, execID)
	return used && !elsewhere
}

// readExec builds the status of an exec from its request and its newest event.
func readExec(tx *store.Tx, sandboxID, execID string) (*agboxv1.ExecStatus, error) {
	req, err := tx.ExecConfig(sandboxID, execID)
	if err != nil {
		return nil, err
	}
	ev, err := tx.ExecLastEvent(sandboxID, execID)
	if err != nil {
		return nil, err
	}
	d := ev.GetExec()
	status := &agboxv1.ExecStatus{
		ExecId:             execID,
		SandboxId:          sandboxID,
		State:              d.GetExecState(),
		Command:            req.GetCommand(),
		Cwd:                req.GetCwd(),
		EnvOverrides:       req.GetEnvOverrides(),
		ExitCode:           d.GetExitCode(),
		Error:              d.GetErrorMessage(),
		LastEventSequence:  tx.LastSequence(sandboxID),
		User:               req.GetUser(),
		Name:               req.GetName(),
		Tty:                req.GetTty(),
		Stdin:              req.GetStdin(),
		StartedAt:          d.GetStartedAt(),
		FinishedAt:         d.GetFinishedAt(),
		Signal:             d.GetSignal(),
		ErrorCode:          d.GetErrorCode(),
		StdoutBytes:        d.GetStdoutBytes(),
		StderrBytes:        d.GetStderrBytes(),
		StdoutDroppedBytes: d.GetStdoutDroppedBytes(),
		StderrDroppedBytes: d.GetStderrDroppedBytes(),
		UserTime:           d.GetUserTime(),
		SystemTime:         d.GetSystemTime(),
		PeakMemoryBytes:    d.GetPeakMemoryBytes(),
		OomKilled:          d.GetOomKilled(),
		Timeout:            req.GetTimeout(),
		IdleTimeout:        req.GetIdleTimeout(),
		MaxLogBytes:        req.GetMaxLogBytes(),
		Main:               d.GetMain(),
	}
	if status.StartedAt == nil {
		status.StartedAt = ev.GetOccurredAt()
	}
	return status, nil
}
