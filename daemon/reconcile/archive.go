package reconcile

import (
	"context"
	"io"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// Archive returns a file or folder of a sandbox's primary, which need not run, as a tar
// stream. It starts nothing. Its error is an errdefs.ErrNotFound if there is no such file.
func (l *Loop) Archive(ctx context.Context, sb ledger.Sandbox, path string) (io.ReadCloser, error) {
	primary, err := l.primaryOf(ctx, sb)
	if errdefs.IsNotFound(err) {
		return nil, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_PRIMARY_MISSING,
			"Sandbox %s has no container any more, and its files went with it: what `agbox diff` showed before cannot be shown again.", sb.ID)
	}
	if err != nil {
		return nil, err
	}
	return l.engine.Archive(ctx, primary.ID, path)
}
