package ledger

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// Create is CreateKeyed without a key: an id that was used is refused.
func (l *Ledger) Create(ctx context.Context, id string, spec *agboxv1.CreateSpec) (Sandbox, error) {
	return l.CreateKeyed(ctx, id, spec, RequestKey{})
}

// CreateKeyed accepts a sandbox: id, spec, key and first event are one transaction. A
// repeated call with the same key and the same request or spec returns the existing
// sandbox.
func (l *Ledger) CreateKeyed(ctx context.Context, id string, spec *agboxv1.CreateSpec, key RequestKey) (Sandbox, error) {
	nonce := ids.New()
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return Sandbox{}, err
	}
	return l.update(ctx, id, func(t *txn) error { return t.create(nonce, spec, shown, key) })
}

// create accepts a sandbox. shown is the spec as the ledger keeps it in memory.
func (t *txn) create(nonce string, spec, shown *agboxv1.CreateSpec, key RequestKey) error {
	if of := t.tx.SandboxOfKey(key.Key); of != "" && of != t.id {
		return keyReused(key.Key).With("sandbox_id", of)
	}
	if _, taken := t.tx.SandboxReserved(t.id); taken {
		return t.sameRequest(spec, key)
	}
	return t.reserve(spec, shown, key, &agboxv1.SandboxPhaseDetails{Nonce: nonce, Name: spec.GetName()})
}

// reserve accepts a new sandbox: its id is taken for ever.
func (t *txn) reserve(spec, shown *agboxv1.CreateSpec, key RequestKey, whose *agboxv1.SandboxPhaseDetails) error {
	if err := t.accept(spec, shown, key, whose); err != nil {
		return err
	}
	return t.tx.ReserveSandbox(t.id, t.l.now())
}

// accept stores a request for a new sandbox, or for one that was made ahead, with the event that says
// whose it is.
func (t *txn) accept(spec, shown *agboxv1.CreateSpec, key RequestKey, whose *agboxv1.SandboxPhaseDetails) error {
	if err := t.nameFree(spec.GetName()); err != nil {
		return err
	}
	if err := t.tx.PutSandboxConfig(t.id, spec); err != nil {
		return err
	}
	if key.Key != "" {
		if err := t.tx.PutSandboxKey(t.id, key.Key, key.Digest); err != nil {
			return err
		}
	}
	t.sb.Spec = shown
	if spec.GetName() != "" {
		t.tx.SetValue(nameOverlay{spec.GetName()}, t.id)
	}
	return t.phase(agboxv1.EventType_SANDBOX_ACCEPTED, whose)
}

// nameFree refuses a name for a sandbox that another living one has as its name or its id: of a
// text that means two nobody knows which is meant. An empty name is free. An id may be a name: clients of
// the published contract do not know names, and a text means an id first.
func (t *txn) nameFree(name string) error {
	if name == "" {
		return nil
	}
	if owner := t.nameOwner(name); owner != "" && owner != t.id {
		return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS,
			"Sandbox %s already has the name %q; choose another name or remove it.", owner, name).
			With("sandbox_id", owner).With("name", name)
	}
	if other, ok := t.l.sandboxIn(t.tx, name); ok && name != t.id && other.Exists() && !other.Over() {
		return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS,
			"%q is the id of another sandbox; choose another name.", name).With("sandbox_id", name).With("name", name)
	}
	return nil
}

// RequestKey makes a request to create a sandbox repeatable.
type RequestKey struct {
	// Key is chosen by the caller; empty means that the request cannot be repeated.
	Key string
	// Digest is that of the whole request.
	Digest []byte
	// AnyID means that the sandbox may have another id than the request says.
	AnyID bool
}

// RepeatedCreate returns the sandbox that the same request with the same key has created.
// again is false if there is none, or if only a comparison of the specs can tell. The
// error is REQUEST_KEY_REUSED if the key belongs to a sandbox with another id.
func (l *Ledger) RepeatedCreate(ctx context.Context, id string, key RequestKey) (sb Sandbox, again bool, err error) {
	if key.Key == "" {
		return sb, false, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) (err error) {
		of := tx.SandboxOfKey(key.Key)
		if of != "" && of != id {
			if !key.AnyID {
				return keyReused(key.Key).With("sandbox_id", of)
			}
			id = of
		}
		if of == id {
			again, err = tx.SameSandboxRequest(id, key.Digest)
		}
		return err
	})
	if err != nil || !again {
		return sb, false, err
	}
	if living, ok := l.Sandbox(id); ok {
		return living, true, nil
	}
	sb, err = l.Past(ctx, id)
	return sb, err == nil, err
}

// sameRequest handles a create whose id is taken. It accepts a repetition of the same
// request with the same key and refuses any other one.
func (t *txn) sameRequest(spec *agboxv1.CreateSpec, key RequestKey) error {
	if key.Key == "" || t.tx.SandboxOfKey(key.Key) != t.id {
		return sandboxIDTaken(t.id)
	}
	same, err := t.tx.SameSandboxRequest(t.id, key.Digest)
	if err == nil && !same {
		same, err = t.tx.SameSandboxConfig(t.id, spec)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	switch {
	case same && t.sb.Exists():
		return errNothing
	case same || key.Key == t.id:
		return sandboxIDTaken(t.id)
	}
	return keyReused(key.Key).With("sandbox_id", t.id)
}

// Rename gives a sandbox another name. It does nothing if the sandbox has that name. A name
// that another living sandbox has is SANDBOX_NAME_EXISTS; a sandbox that is DELETING or
// DELETED is SANDBOX_INVALID_STATE.
func (l *Ledger) Rename(ctx context.Context, id, name string) (Sandbox, error) {
	return l.requestOf(ctx, id, func(t *txn) error { return t.rename(name) }, notRenamed)
}

func (t *txn) rename(name string) error {
	switch {
	case !machine.Legal(t.sb.Record, agboxv1.EventType_SANDBOX_RENAMED):
		return notRenamed(t.sb.Record)
	case t.sb.Name == name:
		return errNothing
	}
	if err := t.nameFree(name); err != nil {
		return err
	}
	if t.nameOwner(t.sb.Name) == t.id {
		t.tx.SetValue(nameOverlay{t.sb.Name}, "")
	}
	t.tx.SetValue(nameOverlay{name}, t.id)
	return t.phase(agboxv1.EventType_SANDBOX_RENAMED, &agboxv1.SandboxPhaseDetails{Name: name})
}

// RequestStop records a request to stop the sandbox. It does nothing if that was
// requested before or has happened. A sandbox that is FAILED, DELETING or DELETED cannot
// be stopped: SANDBOX_INVALID_STATE.
func (l *Ledger) RequestStop(ctx context.Context, id, why string) (Sandbox, error) {
	return l.request(ctx, id, agboxv1.EventType_SANDBOX_STOP_REQUESTED, &agboxv1.SandboxPhaseDetails{Reason: why}, wantsStopped, nil)
}

// RequestStopNow is RequestStop that does not wait for agents to save their work, also if an
// earlier request does.
func (l *Ledger) RequestStopNow(ctx context.Context, id, why string) (Sandbox, error) {
	details := &agboxv1.SandboxPhaseDetails{Reason: why, Now: true}
	return l.request(ctx, id, agboxv1.EventType_SANDBOX_STOP_REQUESTED, details, func(r machine.Record) bool {
		return wantsStopped(r) && (r.Now || r.State == machine.Stopped)
	}, nil)
}

func wantsStopped(r machine.Record) bool {
	return r.Want == machine.WantStopped && r.State != machine.Failed && !r.Restart
}

// StopBecause records that the daemon stops the sandbox because of what something in it
// did. It does nothing to a sandbox that does not run or is being stopped.
func (l *Ledger) StopBecause(ctx context.Context, id string, reason agboxv1.ErrorReason, sentence string) (Sandbox, error) {
	return l.update(ctx, id, func(t *txn) error {
		if t.sb.Want != machine.WantRunning || !machine.Legal(t.sb.Record, agboxv1.EventType_SANDBOX_STOP_REQUESTED) {
			return errNothing
		}
		return t.phase(agboxv1.EventType_SANDBOX_STOP_REQUESTED, &agboxv1.SandboxPhaseDetails{ErrorCode: reason.String(), ErrorMessage: sentence})
	})
}

// RequestResume records a request to run the sandbox again. It does nothing if the
// sandbox runs or is being started. A sandbox that is being stopped or deleted, or is
// DELETED, cannot be resumed: SANDBOX_INVALID_STATE.
func (l *Ledger) RequestResume(ctx context.Context, id string) (Sandbox, error) {
	return l.request(ctx, id, agboxv1.EventType_SANDBOX_RESUME_REQUESTED, nil, func(r machine.Record) bool {
		return r.Want == machine.WantRunning && (r.State == machine.Ready || r.State == machine.Pending)
	}, nil)
}

// RequestRestart records a request to stop the sandbox and to start it again. One that is
// STOPPED or FAILED is only started. now is as for RequestStopNow. It does nothing if that
// was requested before and has not ended. A sandbox that is DELETING or DELETED cannot be
// restarted: SANDBOX_INVALID_STATE.
func (l *Ledger) RequestRestart(ctx context.Context, id string, now bool) (Sandbox, error) {
	resume := agboxv1.EventType_SANDBOX_RESUME_REQUESTED
	return l.requestOf(ctx, id, func(t *txn) error {
		ev := &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_STOP_REQUESTED}
		switch {
		case t.sb.Restart && (t.sb.Now || !now || t.sb.State == machine.Stopped):
			return errNothing
		case t.sb.State == machine.Stopped, t.sb.State == machine.Failed:
			ev.EventType = resume
		case !machine.Legal(t.sb.Record, ev.GetEventType()):
			return impossible(t.sb.Record, resume)
		default:
			ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
				Reason: "asked for a restart", Restart: true, Now: now || t.sb.Now && t.sb.Want == machine.WantStopped,
			}}
		}
		return t.append(ev)
	}, func(past machine.Record) error { return impossible(past, resume) })
}

// Deletion is how a sandbox is removed.
type Deletion struct {
	// Now does not wait for agents to save their work.
	Now bool
	// SpareAgents refuses the removal if agents in the sandbox have not ended.
	SpareAgents bool
	// RemoveLogs also removes the output of its commands.
	RemoveLogs bool
}

// RequestDelete records a request to remove the sandbox. It does nothing if that was
// requested before or has happened.
func (l *Ledger) RequestDelete(ctx context.Context, id string) (Sandbox, error) {
	return l.RequestDeletion(ctx, id, Deletion{})
}

// RequestDeletion is RequestDelete with choices. After an earlier request it records what
// that one did not ask for.
func (l *Ledger) RequestDeletion(ctx context.Context, id string, how Deletion) (Sandbox, error) {
	details := &agboxv1.SandboxPhaseDetails{Reason: machine.DeleteRequested, Now: how.Now, RemoveLogs: how.RemoveLogs}
	done := func(r machine.Record) bool {
		return wantsDeleted(r) && (r.Over() || (r.Now || !how.Now) && (r.RemoveLogs || !how.RemoveLogs))
	}
	check := func(t *txn) error {
		if how.SpareAgents && !wantsDeleted(t.sb.Record) {
			return t.hasNoAgents()
		}
		return nil
	}
	return l.request(ctx, id, agboxv1.EventType_SANDBOX_DELETE_REQUESTED, details, done, check)
}

// hasNoAgents refuses a sandbox with agents that have not ended, and names them.
func (t *txn) hasNoAgents() error {
	living := t.l.agentsIn(t.tx, t.sb.ID)
	if len(living) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS,
		"In sandbox %s there are agents that have not ended: %s. End them with \"agbox agent kill\", or remove the sandbox with \"agbox rm -f\".",
		t.sb.Called(), naming(living)).With("sandbox_id", t.sb.ID)
}

// wantDeleted requests the removal of a sandbox that was made for an agent, if it still exists.
func (l *Ledger) wantDeleted(tx *store.Tx, sandboxID string) error {
	_, err := l.within(tx, sandboxID, func(s *txn) error {
		if !s.sb.Exists() || wantsDeleted(s.sb.Record) || !machine.Legal(s.sb.Record, agboxv1.EventType_SANDBOX_DELETE_REQUESTED) {
			return errNothing
		}
		return s.append(&agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETE_REQUESTED})
	})
	return err
}

// request records a request unless it is done or check refuses it. details and check may be nil.
func (l *Ledger) request(ctx context.Context, id string, typ agboxv1.EventType, details *agboxv1.SandboxPhaseDetails, done func(machine.Record) bool, check func(*txn) error) (Sandbox, error) {
	return l.requestOf(ctx, id, func(t *txn) error {
		switch {
		case done(t.sb.Record):
			return errNothing
		case !machine.Legal(t.sb.Record, typ):
			return impossible(t.sb.Record, typ)
		}
		if check != nil {
			if err := check(t); err != nil {
				return err
			}
		}
		ev := &agboxv1.SandboxEvent{EventType: typ}
		if details.GetReason() != "" || details.GetNow() || details.GetRestart() {
			ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: details}
		}
		return t.append(ev)
	}, func(past machine.Record) error {
		if done(past) {
			return nil
		}
		return impossible(past, typ)
	})
}

// requestOf is update for a request of a user: it refuses a sandbox that does not exist, and asks
// ofPast about one that is not in memory.
func (l *Ledger) requestOf(ctx context.Context, id string, fn func(*txn) error, ofPast func(machine.Record) error) (Sandbox, error) {
	sb, err := l.update(ctx, id, func(t *txn) error {
		if !t.sb.Exists() || t.sb.hidden() {
			return notFound(id)
		}
		return fn(t)
	})
	if !errdefs.IsNotFound(err) {
		return sb, err
	}
	past, err := l.FindSandbox(ctx, id)
	if err == nil {
		err = ofPast(past.Record)
	}
	return past, err
}

// Emit appends an event that was decided from the record seen. If a new request or
// another state has been recorded since, it appends nothing, and the decision must be
// made again.
func (l *Ledger) Emit(ctx context.Context, seen machine.Record, ev *agboxv1.SandboxEvent) (Sandbox, error) {
	if err := l.eraseKey(seen, ev); err != nil {
		return Sandbox{}, err
	}
	return l.update(ctx, seen.ID, func(t *txn) error {
		if t.sb.overtook(seen) {
			return errNothing
		}
		idleStop := ev.GetEventType() == agboxv1.EventType_SANDBOX_STOP_REQUESTED
		if idleStop && (t.sb.InUse() || t.sb.LastUse.After(seen.LastUse)) {
			return errNothing
		}
		if err := t.append(ev); err != nil {
			return err
		}
		if !freesName(t.sb) {
			return nil
		}
		if t.nameOwner(t.sb.Name) == seen.ID {
			t.tx.SetValue(nameOverlay{t.sb.Name}, "")
		}
		err := t.tx.EraseSecrets(seen.ID)
		if t.sb.Over() {
			err = errors.Join(err, t.tx.MarkDeleted(seen.ID, l.now()))
		}
		return err
	})
}

// overtook reports whether the record has changed so much since seen that a decision from
// it must be made again.
func (sb Sandbox) overtook(seen machine.Record) bool {
	return sb.State != seen.State || sb.Want != seen.Want || sb.PendingSequence != seen.PendingSequence
}
