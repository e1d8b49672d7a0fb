package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// CreateAhead accepts a sandbox that is made ahead for the pool with an id. Nobody sees it before Take.
func (l *Ledger) CreateAhead(ctx context.Context, id, pool string, spec *agboxv1.CreateSpec) (Sandbox, error) {
	nonce := ids.New()
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return Sandbox{}, err
	}
	return l.update(ctx, id, func(t *txn) error {
		if _, taken := t.tx.SandboxReserved(t.id); taken {
			return sandboxIDTaken(t.id)
		}
		if _, exists := l.Pool(pool); !exists {
			return poolNotFound(pool)
		}
		return t.reserve(spec, shown, RequestKey{}, &agboxv1.SandboxPhaseDetails{Nonce: nonce, Pool: pool})
	})
}

// ErrTaken means that a sandbox that was made ahead cannot be taken: somebody has it, or it is not
// READY any more, with all services that it requires.
var ErrTaken = fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_SANDBOX_INVALID_STATE, "The sandbox that was made ahead is not free any more.")

// Take makes a sandbox that was made ahead that of a request, in one transaction: name, spec, key and
// event. It is PENDING then, and becomes READY as any other. The error is ErrTaken if it is not free.
func (l *Ledger) Take(ctx context.Context, id string, spec *agboxv1.CreateSpec, key RequestKey) (Sandbox, error) {
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return Sandbox{}, err
	}
	return l.update(ctx, id, func(t *txn) error {
		if of := t.tx.SandboxOfKey(key.Key); of != "" {
			return keyReused(key.Key).With("sandbox_id", of)
		}
		if t.sb.Pool == "" || !machine.Legal(t.sb.Record, agboxv1.EventType_SANDBOX_ACCEPTED) || machine.ServiceTrouble(t.sb.Record, machine.ServiceRules(t.sb.Spec)) != "" {
			return ErrTaken
		}
		if err := t.l.served(t.tx, t.sb.Pool, true); err != nil {
			return err
		}
		services := machine.HandedOver(t.sb.Record, machine.ServiceRules(spec))
		if err := t.accept(spec, shown, key, &agboxv1.SandboxPhaseDetails{Nonce: t.sb.Nonce, Name: spec.GetName()}); err != nil {
			return err
		}
		for _, ev := range services {
			if err := t.append(ev); err != nil {
				return err
			}
		}
		return nil
	})
}

// DropAhead requests the removal of a sandbox that was made ahead. It does nothing and returns false if somebody
// has it. The output of its commands is removed with it, unless one has failed and its end names the output.
func (l *Ledger) DropAhead(ctx context.Context, id string) (dropped bool, err error) {
	_, err = l.update(ctx, id, func(t *txn) error {
		if dropped = t.sb.Pool != "" && !wantsDeleted(t.sb.Record); !dropped {
			return errNothing
		}
		return t.phase(agboxv1.EventType_SANDBOX_DELETE_REQUESTED, &agboxv1.SandboxPhaseDetails{Now: true, RemoveLogs: t.sb.ErrorReason != agboxv1.ErrorReason_HOOK_FAILED.String()})
	})
	return dropped, err
}
