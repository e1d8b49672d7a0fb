package execs

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/guests/links"
)

// Processes lists the processes in the primary of a sandbox, as its supervisor sees them,
// without the names of their execs.
func (r *Runner) Processes(ctx context.Context, sandboxID string) (*agboxv1.ListProcessesResponse, error) {
	lk, err := r.links.Wait(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	list, at, more, err := lk.Conn.Processes(ctx)
	if err != nil {
		return nil, err
	}
	resp := &agboxv1.ListProcessesResponse{At: timestamppb.New(at), Truncated: more}
	for _, p := range list {
		resp.Processes = append(resp.Processes, &agboxv1.Process{
			Pid: p.GetPid(), ParentPid: p.GetParentPid(), User: p.GetUser(), State: p.GetState(), StartedAt: p.GetStartedAt(),
			CpuTime: durationpb.New(time.Duration(p.GetCpuMs()) * time.Millisecond), MemoryBytes: p.GetMemoryBytes(),
			Command: p.GetCommand(), ExecId: p.GetExecId(),
		})
	}
	return resp, nil
}
