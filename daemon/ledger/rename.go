package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
)

// Rename gives a sandbox another name. It does nothing if the sandbox has that name. A name
// that another living sandbox has is SANDBOX_NAME_EXISTS; a sandbox that is DELETING or
// DELETED is SANDBOX_INVALID_STATE.
func (l *Ledger) Rename(ctx context.Context, id, name string) (Sandbox, error) {
	sb, err := l.update(ctx, id, func(t *txn) error { return t.rename(id, name) })
	if !errdefs.IsNotFound(err) {
		return sb, err
	}
	past, err := l.Past(ctx, id)
	if err == nil {
		err = notRenamed(past.Record)
	}
	return past, err
}

func (t *txn) rename(id, name string) error {
	switch {
	case !t.sb.Exists():
		return notFound(id)
	case !machine.Legal(t.sb.Record, agboxv1.EventType_SANDBOX_RENAMED):
		return notRenamed(t.sb.Record)
	case t.sb.Name == name:
		return errNothing
	}
	if err := t.nameFree(id, name); err != nil {
		return err
	}
	if t.nameOwner(t.sb.Name) == id {
		t.tx.SetValue(nameOverlay{t.sb.Name}, "")
	}
	t.tx.SetValue(nameOverlay{name}, id)
	return t.append(id, &agboxv1.SandboxEvent{
		EventType: agboxv1.EventType_SANDBOX_RENAMED,
		Details:   &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{Name: name}},
	})
}

func notRenamed(r machine.Record) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
		"Sandbox %s is %s and cannot be renamed.", r.Called(), StateWord(r.State)).With("sandbox_id", r.ID)
}
