package server

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ListProcesses lists the processes in the primary of a sandbox.
func (s *execCalls) ListProcesses(ctx context.Context, req *agboxv1.ListProcessesRequest) (*agboxv1.ListProcessesResponse, error) {
	sb, err := s.ledger.FindSandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	list, err := s.execs.Processes(ctx, sb.ID)
	if err != nil {
		return nil, err
	}
	sb, _ = s.ledger.Sandbox(sb.ID) // with the execs that were accepted meanwhile
	for _, p := range list.GetProcesses() {
		p.ExecName = sb.Execs[p.GetExecId()].Name
	}
	return list, nil
}
