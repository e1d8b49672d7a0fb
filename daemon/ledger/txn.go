package ledger

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// errNothing ends a change that has nothing to do and has written nothing. It is not a
// failure.
var errNothing = errors.New("nothing to do")

// txn is one change of one sandbox. The function that gets it may run more than once and
// must have no effect outside the transaction.
type txn struct {
	l      *Ledger
	tx     *store.Tx
	sb     Sandbox
	events []*agboxv1.SandboxEvent
}

// overlay is the key of the uncommitted state of a sandbox within a batch.
type overlay struct{ sandboxID string }

// nameOverlay is the key of the uncommitted owner of a name within a batch.
type nameOverlay struct{ name string }

// update runs fn with the sandbox at its point of the write order, and returns the
// sandbox after the commit.
func (l *Ledger) update(ctx context.Context, sandboxID string, fn func(*txn) error) (Sandbox, error) {
	var after Sandbox
	err := l.store.Update(ctx, func(tx *store.Tx) (err error) {
		after, err = l.within(tx, sandboxID, fn)
		return err
	})
	return after, err
}

// within is update inside a write transaction.
func (l *Ledger) within(tx *store.Tx, sandboxID string, fn func(*txn) error) (Sandbox, error) {
	t := &txn{l: l, tx: tx}
	if sb, ok := tx.Value(overlay{sandboxID}).(Sandbox); ok {
		t.sb = sb
	} else {
		t.sb, _ = l.Sandbox(sandboxID)
	}
	before := t.sb
	if err := fn(t); errors.Is(err, errNothing) {
		return before, nil
	} else if err != nil {
		return before, err
	}
	tx.SetValue(overlay{sandboxID}, t.sb)
	tx.OnCommit(func() { l.publish(t.sb, t.events) })
	return t.sb, nil
}

// append adds one event. This is the only way to change a state.
func (t *txn) append(sandboxID string, draft *agboxv1.SandboxEvent) error {
	typ := draft.GetEventType()
	if !machine.Legal(t.sb.Record, typ) {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_INVALID_STATE,
			"Sandbox %s is %s; %s is not possible now.", t.sb.Called(), StateWord(t.sb.State), typ).With("sandbox_id", sandboxID)
	}
	ev := proto.CloneOf(draft)
	ev.SandboxId = sandboxID
	ev.OccurredAt = timestamppb.New(t.l.now())
	ev.Sequence = t.sb.LastSequence + 1
	t.sb.Record = machine.Fold(t.sb.Record, ev)
	ev.SandboxState = t.sb.State
	if err := t.tx.AppendEvent(ev); err != nil {
		return err
	}
	if ev.GetSequence() != t.sb.LastSequence {
		return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
			"The event stream of sandbox %s is at %d in the store and at %d in memory; restart the daemon.", sandboxID, ev.GetSequence(), t.sb.LastSequence)
	}
	t.events = append(t.events, ev)
	return nil
}

// nameOwner returns the living sandbox that has the name, or "".
func (t *txn) nameOwner(name string) string {
	if id, ok := t.tx.Value(nameOverlay{name}).(string); ok {
		return id
	}
	t.l.mu.RLock()
	defer t.l.mu.RUnlock()
	return t.l.names[name]
}

// StateWord returns the state as users see it, for example "ready".
func StateWord(s agboxv1.SandboxState) string {
	switch s {
	case machine.Pending:
		return "pending"
	case machine.Ready:
		return "ready"
	case machine.Failed:
		return "failed"
	case machine.Stopped:
		return "stopped"
	case machine.Deleting:
		return "being deleted"
	case machine.Deleted:
		return "deleted"
	}
	return "unknown"
}
