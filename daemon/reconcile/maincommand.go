package reconcile

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// emit appends an event. A sandbox that becomes READY gets the record of its own command
// in the same transaction, so whoever sees it READY finds the command.
func (l *Loop) emit(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) error {
	if ev.GetEventType() == agboxv1.EventType_SANDBOX_READY {
		return l.recordMain(ctx, sb, ev)
	}
	_, err := l.ledger.Emit(ctx, sb.Record, ev)
	return err
}

// recordMain records the sandbox's own command, if it is due, together with an event,
// which may be nil.
func (l *Loop) recordMain(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) error {
	main := l.execs.Main(sb.ID)
	switch {
	case main == nil && ev == nil:
		return nil
	case main == nil:
		_, err := l.ledger.Emit(ctx, sb.Record, ev)
		return err
	}
	known, taken, err := l.ledger.AcceptMain(ctx, sb.Record, ev, main)
	if err == nil && (known || taken) {
		l.execs.MainRecorded(main, known)
	}
	return err
}
