package guest

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Drain drains an incarnation of an agent: the supervisor tells it to save its work and to
// exit, and ends it when the times of the request are over. Drain does not wait for that. A
// second call changes nothing. False means that the exec is no running incarnation. A
// supervisor that is too old fails with errdefs.ErrNotImplemented.
func (c *Conn) Drain(ctx context.Context, req *guestv1.DrainRequest) (bool, error) {
	reply, err := c.agents.Drain(ctx, req)
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}

// Allot tells an incarnation of an agent what the children of the agent have of its budget.
// False means that it does not run. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Allot(ctx context.Context, req *guestv1.AllotRequest) (bool, error) {
	reply, err := c.agents.Allot(ctx, req)
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}

// Pause tells an incarnation of an agent that the agent is paused, or is not any more. False
// means that it does not run. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Pause(ctx context.Context, req *guestv1.PauseRequest) (bool, error) {
	reply, err := c.agents.Pause(ctx, req)
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}
