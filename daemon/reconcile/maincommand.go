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

// numberMain writes to the boot configuration which run of the sandbox's own command the
// next start makes. The supervisor counts its status files, but retention or a person may
// have removed them, and an exec id is never used twice.
func (l *Loop) numberMain(ctx context.Context, sb ledger.Sandbox) error {
	run, err := l.ledger.NextMainRun(ctx, sb.ID)
	if err != nil {
		return err
	}
	file := l.paths.GuestBoot(sb.ID)
	boot, err := readBoot(file)
	if err != nil {
		return l.unwritable(err)
	}
	if run == max(1, boot.GetMainRun()) {
		return nil
	}
	boot.MainRun = run
	if err := saveBoot(file, boot); err != nil {
		return l.unwritable(err)
	}
	return nil
}
