package execs

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/links"
)

// Drain lets a running exec of an agent save its work, and has the supervisor end it when the
// time for that is over, even if the daemon goes away. A second call changes nothing. If the
// supervisor is too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Drain(ctx context.Context, sandboxID string, req *guestv1.DrainRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Drain(ctx, req)
	})
}

// Pause tells an incarnation that its agent is paused, or is not any more. If the supervisor is
// too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Pause(ctx context.Context, sandboxID string, req *guestv1.PauseRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Pause(ctx, req)
	})
}

// Allot tells an incarnation what the children of its agent have of the budget. If the
// supervisor is too old, the error is errdefs.ErrNotImplemented.
func (r *Runner) Allot(ctx context.Context, sandboxID string, req *guestv1.AllotRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		return lk.Conn.Allot(ctx, req)
	})
}

// Answer answers a request of an incarnation, which need not wait for it any more.
func (r *Runner) Answer(ctx context.Context, sandboxID string, req *guestv1.AnswerRequest) error {
	return r.tell(ctx, sandboxID, req.GetExecId(), func(ctx context.Context, lk *links.Link) (bool, error) {
		_, err := lk.Conn.Answer(ctx, req)
		return true, err
	})
}
