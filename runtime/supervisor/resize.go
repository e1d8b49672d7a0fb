package supervisor

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/output"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

// Resize sets the window size of an exec's terminal.
func (v *service) Resize(ctx context.Context, req *guestv1.ResizeRequest) (*guestv1.ResizeResponse, error) {
	for _, n := range []uint32{req.GetRows(), req.GetColumns()} {
		if n < 1 || n > output.MaxSize {
			return nil, rpc.Errorf(rpc.InvalidArgument, "a terminal has 1 to %d rows and columns", output.MaxSize)
		}
	}
	e, err := v.decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.ResizeResponse{}, err
	}
	in := v.s.registry.inputOf(e)
	if v.s.registry.childOf(e) == nil {
		return &guestv1.ResizeResponse{}, nil
	}
	if in == nil || !in.tty {
		return nil, rpc.Errorf(rpc.InvalidArgument, "the exec has no terminal")
	}
	in.control(func(fd int) { output.SetSize(fd, req.GetRows(), req.GetColumns()) })
	return &guestv1.ResizeResponse{Running: true}, nil
}
