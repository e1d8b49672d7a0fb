package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// RequestRestart records a request to stop the sandbox and to start it again. One that is
// STOPPED or FAILED is only started. now is as for RequestStopNow. It does nothing if that
// was requested before and has not ended. A sandbox that is DELETING or DELETED cannot be
// restarted: SANDBOX_INVALID_STATE.
func (l *Ledger) RequestRestart(ctx context.Context, id string, now bool) (Sandbox, error) {
	sb, err := l.update(ctx, id, func(t *txn) error {
		ev := &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_STOP_REQUESTED}
		switch {
		case !t.sb.Exists():
			return notFound(id)
		case t.sb.Restart && (t.sb.Now || !now || t.sb.State == machine.Stopped):
			return errNothing
		case t.sb.State == machine.Stopped, t.sb.State == machine.Failed:
			ev.EventType = agboxv1.EventType_SANDBOX_RESUME_REQUESTED
		case !machine.Legal(t.sb.Record, ev.GetEventType()):
			return impossible(t.sb.Record, agboxv1.EventType_SANDBOX_RESUME_REQUESTED)
		default:
			ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
				Reason: "asked for a restart", Restart: true, Now: now || t.sb.Now && t.sb.Want == machine.WantStopped,
			}}
		}
		return t.append(id, ev)
	})
	if !errdefs.IsNotFound(err) {
		return sb, err
	}
	past, err := l.Past(ctx, id)
	if err == nil {
		err = impossible(past.Record, agboxv1.EventType_SANDBOX_RESUME_REQUESTED)
	}
	return past, err
}
