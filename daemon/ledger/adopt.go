package ledger

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Adopted is a sandbox that exists in the engine and whose record is lost.
type Adopted struct {
	ID string
	// Nonce is the nonce in the labels of its containers.
	Nonce string
	Spec  *agboxv1.CreateSpec
	// Running means that its primary runs.
	Running bool
}

// adoptedReason is the reason in the first event of an adopted sandbox.
const adoptedReason = "adopted after the loss of the database; earlier events and execs are not known"

// Adopt makes a record for a sandbox that has none. The record says that the sandbox was
// READY, so the sandbox is kept whatever its container does next.
func (l *Ledger) Adopt(ctx context.Context, a Adopted) (Sandbox, error) {
	return l.update(ctx, a.ID, func(t *txn) error {
		if err := t.tx.ReserveSandbox(a.ID, l.now()); err != nil {
			return err
		}
		if err := t.tx.PutSandboxConfig(a.ID, a.Spec); err != nil {
			return err
		}
		t.sb.Spec = a.Spec
		for _, ev := range adoptionEvents(a) {
			if err := t.append(a.ID, ev); err != nil {
				return err
			}
		}
		return nil
	})
}

func adoptionEvents(a Adopted) []*agboxv1.SandboxEvent {
	phase := func(typ agboxv1.EventType, d *agboxv1.SandboxPhaseDetails) *agboxv1.SandboxEvent {
		d.Reason = adoptedReason
		return &agboxv1.SandboxEvent{EventType: typ, Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: d}}
	}
	events := []*agboxv1.SandboxEvent{
		phase(agboxv1.EventType_SANDBOX_ACCEPTED, &agboxv1.SandboxPhaseDetails{Nonce: a.Nonce, Name: a.Spec.GetName()}),
		phase(agboxv1.EventType_SANDBOX_READY, &agboxv1.SandboxPhaseDetails{}),
	}
	if !a.Running {
		events = append(events,
			phase(agboxv1.EventType_SANDBOX_STOP_REQUESTED, &agboxv1.SandboxPhaseDetails{}),
			phase(agboxv1.EventType_SANDBOX_STOPPED, &agboxv1.SandboxPhaseDetails{}))
	}
	return events
}

// Unreadable returns the sandboxes whose records could not be read when the
// ledger was opened, and why. The map must not be changed.
func (l *Ledger) Unreadable() map[string]error { return l.unreadable }
