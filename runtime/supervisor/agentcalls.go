package supervisor

import (
	"context"
	"encoding/json"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/internal/journal"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/agents"
)

// agentService answers the calls about agents.
type agentService struct{ s *Supervisor }

var _ guestv1.AgentsService = (*agentService)(nil)

// agentBoot converts what the daemon says about an incarnation.
func agentBoot(execID string, b *guestv1.AgentBoot) agents.Boot {
	beat := agents.Heartbeat{
		Required: b.GetBeatRequired(), Interval: milliseconds(b.GetBeatIntervalMs()), HungAfter: milliseconds(b.GetHungAfterMs()), Durable: milliseconds(b.GetDurableMs()),
	}
	for _, ms := range b.GetSilencesMs() {
		beat.Silences = append(beat.Silences, milliseconds(ms))
	}
	return agents.Boot{
		ExecID: execID, AgentID: b.GetAgentId(), Number: b.GetIncarnation(),
		Observation: b.GetObservation(), Files: b.GetFiles(), Checkpoint: b.GetCheckpoint(), Model: b.GetModel(), OutputTokens: b.GetUsedOutputTokens(),
		JournalBytes: min(b.GetJournalBytes(), journal.MaxJournal), Bounds: bounds(b), Work: b.Work, Heartbeat: beat, Phase: b.GetPhase(), Calls: callLimits(b.GetCalls()),
	}
}

// Follow sends the news of incarnations. It runs in a goroutine of the ttrpc server, and
// ends with its connection or when the supervisor stops.
func (v *agentService) Follow(ctx context.Context, _ *guestv1.FollowRequest, stream guestv1.Agents_FollowServer) error {
	err := v.s.agents.Follow(ctx, func(n agents.News) error {
		news := &guestv1.IncarnationNews{
			ExecId: n.ExecID, Rows: n.Rows, SilentMs: uint64(n.Silent.Milliseconds()), Armed: n.Armed, Lifecycle: n.Lifecycle,
			Ready: n.Ready, Hung: n.Hung, OpenRequests: n.Open,
		}
		for _, r := range n.Requests {
			news.Requests = append(news.Requests, &guestv1.AgentRequest{Number: r.Number, Op: r.Op, Json: r.Body})
		}
		return stream.Send(&guestv1.FollowResponse{News: news})
	})
	switch {
	case errors.Is(err, agents.ErrManyFollowers):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, agents.ErrStopping):
		return status.Error(codes.Aborted, err.Error())
	}
	return err
}

// Answer answers a request of an incarnation.
func (v *agentService) Answer(_ context.Context, req *guestv1.AnswerRequest) (*guestv1.AnswerResponse, error) {
	if req.GetCode() == "" && !json.Valid(req.GetJson()) {
		return nil, status.Error(codes.InvalidArgument, "the answer is no JSON")
	}
	waits := v.s.agents.Answer(req.GetExecId(), req.GetNumber(), agents.Decision{Result: req.GetJson(), Code: req.GetCode(), Message: req.GetMessage()})
	return &guestv1.AnswerResponse{Waits: waits}, nil
}

// Look says how files and limits are now.
func (*agentService) Look(_ context.Context, req *guestv1.LookRequest) (*guestv1.LookResponse, error) {
	seen, reply := agents.Look(req.GetPaths()), new(guestv1.LookResponse)
	for _, path := range req.GetPaths() {
		f, looked := seen.Files[path]
		if !looked {
			return nil, status.Error(codes.InvalidArgument, "too many paths, or too long ones")
		}
		reply.Files = append(reply.Files, &guestv1.SeenFile{Exists: f.Exists, Size: f.Size, Modified: f.Modified, Inode: f.Inode, Sum: f.Sum})
	}
	reply.Limits = seen.Limits
	return reply, nil
}
