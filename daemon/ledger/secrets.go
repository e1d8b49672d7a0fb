package ledger

import (
	"cmp"
	"context"
	"errors"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/secrets"
	"github.com/agbox/agbox/store"
)

// hide returns the spec without secret values. If it has some, it makes the key with
// which the store encrypts them.
func (l *Ledger) hide(ctx context.Context, id string, spec *agboxv1.CreateSpec) (*agboxv1.CreateSpec, error) {
	shown, hidden := secrets.HideSpec(spec)
	if hidden == nil {
		return spec, nil
	}
	return shown, l.makeKey(ctx, id)
}

// keyForExec makes the key of the exec's sandbox if the exec is its first one with
// secrets.
func (l *Ledger) keyForExec(ctx context.Context, req *agboxv1.CreateExecRequest) error {
	_, hidden := secrets.HideExec(req)
	if sb, living := l.Sandbox(req.GetSandboxId()); hidden == nil || !living || sb.Want != machine.WantRunning {
		return nil // it has no secrets, or is refused
	}
	return l.makeKey(ctx, req.GetSandboxId())
}

// makeKey makes the key of a sandbox unless it has one, which then counts as made now. It does
// not replace a key that is lost, because somebody may put it back.
func (l *Ledger) makeKey(ctx context.Context, id string) error {
	_, err := l.store.Keys().Get(id)
	if err == nil {
		return l.store.Keys().Make(id)
	}
	if !errors.Is(err, secrets.ErrNoKey) {
		return err
	}
	lost, failed := look(ctx, l, func(tx *store.Tx) bool { return tx.HasSecrets(id) })
	if failed != nil || lost {
		return cmp.Or(failed, err)
	}
	return l.store.Keys().Make(id)
}

// Reveal returns the sandbox with the secret values in its spec. Only a call of the
// engine may get them. The error is a fault SECRETS_UNREADABLE.
//
// This is where a secret variable of a sandbox enters it. docs/security.md lists the other places
// where a credential does, which a gate that keeps them outside changes, too.
func (l *Ledger) Reveal(ctx context.Context, sb Sandbox) (Sandbox, error) {
	err := l.store.View(ctx, func(tx *store.Tx) error {
		values, err := tx.SandboxSecrets(sb.ID)
		sb.Spec = secrets.RevealSpec(sb.Spec, values)
		return err
	})
	return sb, err
}

// RevealedExec is ExecRequest with the secret values. Only the supervisor may get them.
// The error can be a fault SECRETS_UNREADABLE.
func (l *Ledger) RevealedExec(ctx context.Context, sandboxID, execID string) (*agboxv1.CreateExecRequest, error) {
	return view(ctx, l, func(tx *store.Tx) (*agboxv1.CreateExecRequest, error) {
		req, err := tx.ExecConfig(sandboxID, execID)
		if err != nil {
			return nil, err
		}
		values, err := tx.ExecSecrets(sandboxID, execID)
		return secrets.RevealExec(req, values), err
	})
}

// eraseKey erases the key of a sandbox right before the event that nothing of it runs any more, for which
// agbox rm waits, or that it is deleted. A sandbox that is being deleted needs its secrets no more, and
// after a crash in between the next daemon deletes it.
func (l *Ledger) eraseKey(seen machine.Record, ev *agboxv1.SandboxEvent) error {
	ends := ev.GetEventType() == agboxv1.EventType_SANDBOX_ENDED || ev.GetEventType() == agboxv1.EventType_SANDBOX_DELETED
	if !ends || seen.State != machine.Deleting {
		return nil
	}
	return l.store.Keys().Erase(seen.ID)
}

// unusedKeyAge is how old a key without a sandbox must be before SweepKeys removes it. A
// creation in progress has made its key but not its sandbox.
const unusedKeyAge = 10 * time.Minute

// SweepKeys removes the keys that no sandbox needs: of creations that were refused or
// that a crash ended. After a failed sync to the disk, a sandbox may be stored whose creation has
// failed, so what is stored counts too.
func (l *Ledger) SweepKeys() error {
	return l.store.Keys().Sweep(l.now().Add(-unusedKeyAge), func(id string) bool {
		if _, living := l.Sandbox(id); living || l.unreadable[id] != nil {
			return true
		}
		stored, err := look(context.Background(), l, func(tx *store.Tx) bool { return tx.HasSecrets(id) })
		return stored || err != nil
	})
}
