package reconcile

import (
	"context"
	"io"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
)

// Archive returns a file or folder of a sandbox's primary, which need not run, as a tar
// stream. It starts nothing. Its error is an errdefs.ErrNotFound if there is no such file.
func (l *Loop) Archive(ctx context.Context, sb ledger.Sandbox, path string) (io.ReadCloser, error) {
	primary, err := l.archived(ctx, sb)
	if err != nil {
		return nil, err
	}
	stream, err := l.engine.Archive(ctx, primary.ID, path)
	if errdefs.IsNotFound(err) {
		// Or there is no container, or no file of it, any more: all of the workspace would count as
		// removed, and be removed from the folder that it was copied from.
		if _, gone := l.archived(ctx, sb); gone != nil {
			return nil, gone
		}
	}
	return stream, err
}

// archived returns the primary of a sandbox if nobody removes it.
func (l *Loop) archived(ctx context.Context, sb ledger.Sandbox) (runtime.Container, error) {
	primary, err := l.primaryOf(ctx, sb)
	now, living := l.ledger.Sandbox(sb.ID)
	removed := !living || now.Want == machine.WantDeleted || err == nil && (primary.State == runtime.StateRemoving || primary.State == runtime.StateDead)
	if removed || errdefs.IsNotFound(err) {
		return primary, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_PRIMARY_MISSING,
			"Sandbox %s has no container any more, and its files went with it: what `agbox diff` showed before cannot be shown again.", sb.ID)
	}
	return primary, err
}
