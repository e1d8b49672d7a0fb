package server

import (
	"context"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ReadJournal sends the journals of an agent's incarnations.
func (s *agentCalls) ReadJournal(req *agboxv1.ReadJournalRequest, stream grpc.ServerStreamingServer[agboxv1.ReadJournalResponse]) error {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return err
	}
	incarnations, err := s.incarnationsOf(stream.Context(), a.ID)
	if err != nil {
		return err
	}
	for _, ev := range incarnations {
		n, after := ev.GetIncarnation(), uint64(0)
		if n < req.GetIncarnation() {
			continue
		}
		if n == req.GetIncarnation() {
			after = req.GetAfterRow()
		}
		err := s.incarnations.Journal(a, ev.GetBegun().GetSandboxId(), ev.GetBegun().GetExecId(), after, func(number uint64, row []byte) error {
			return stream.Send(&agboxv1.ReadJournalResponse{Incarnation: n, Row: number, Json: string(row)})
		})
		if err != nil && !errdefs.IsNotFound(err) { // with its sandbox the logs may be gone
			return err
		}
	}
	return stream.Send(&agboxv1.ReadJournalResponse{})
}

// incarnationsOf returns the begins of an agent's incarnations.
func (s *agentCalls) incarnationsOf(ctx context.Context, agentID string) (begun []*agboxv1.AgentEvent, err error) {
	at, err := s.ledger.OpenAgentEvents(ctx, agentID, 0)
	if err != nil {
		return nil, err
	}
	for more := true; more; {
		var events []*agboxv1.AgentEvent
		if events, more, err = s.ledger.NextAgentEvents(ctx, at, eventPage); err != nil {
			return nil, err
		}
		for _, ev := range events {
			if ev.GetBegun() != nil {
				begun = append(begun, ev)
			}
		}
	}
	return begun, nil
}
