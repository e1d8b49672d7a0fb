package server

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// checkpointPiece is the size of a message with a part of a checkpoint.
const checkpointPiece = 256 << 10

// ListCheckpoints returns the checkpoints of an agent that are kept.
func (s *agentCalls) ListCheckpoints(_ context.Context, req *agboxv1.ListCheckpointsRequest) (*agboxv1.ListCheckpointsResponse, error) {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &agboxv1.ListCheckpointsResponse{Checkpoints: a.Checkpoints}, nil
}

// GetCheckpoint sends the file of a checkpoint.
func (s *agentCalls) GetCheckpoint(req *agboxv1.GetCheckpointRequest, stream grpc.ServerStreamingServer[agboxv1.GetCheckpointResponse]) error {
	a, err := s.ledger.FindAgent(req.GetAgentId())
	if err != nil {
		return err
	}
	c, file, err := s.checkpoint(a, req.GetSeq())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := stream.Send(&agboxv1.GetCheckpointResponse{Checkpoint: c}); err != nil {
		return err
	}
	for {
		piece := make([]byte, checkpointPiece)
		n, err := io.ReadFull(file, piece)
		if n > 0 {
			if err := stream.Send(&agboxv1.GetCheckpointResponse{Data: piece[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// checkpoint opens a checkpoint of an agent. 0 means the newest one that is whole.
func (s *agentCalls) checkpoint(a ledger.Agent, seq uint64) (*agboxv1.AgentCheckpoint, io.ReadCloser, error) {
	if len(a.Checkpoints) == 0 {
		return nil, nil, invalidCheckpoint(errdefs.ErrNotFound, a, "Agent %s has no checkpoint; its program saves one with \"agbox-agent checkpoint\".", a.Called())
	}
	wanted := a.Checkpoints
	if seq != 0 {
		i := slices.IndexFunc(a.Checkpoints, func(c *agboxv1.AgentCheckpoint) bool { return c.GetSeq() == seq })
		if i < 0 {
			return nil, nil, invalidCheckpoint(errdefs.ErrNotFound, a, "Checkpoint %d of agent %s is not kept; \"agbox agent checkpoints %s\" lists those that are.", seq, a.Called(), a.Called())
		}
		wanted = wanted[i : i+1]
	}
	c, file, _, err := s.checkpoints.Newest(a.ID, wanted)
	if errors.Is(err, retention.ErrCheckpointDamaged) {
		return nil, nil, invalidCheckpoint(errdefs.ErrDataLoss, a, "Checkpoint CRC mismatch for job %s: no such checkpoint is whole; \"agbox agent checkpoints %s\" lists all.", a.ID, a.ID)
	}
	return c, file, err
}

func invalidCheckpoint(class error, a ledger.Agent, format string, args ...any) error {
	return fault.New(class, agboxv1.ErrorReason_CHECKPOINT_INVALID, format, args...).With("agent_id", a.ID)
}
