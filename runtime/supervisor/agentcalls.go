package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"

	calls "github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

// agentService answers the calls about agents.
type agentService struct{ s *Supervisor }

// agentBoot converts what the daemon says about an incarnation. hostname is what its program
// has in HOSTNAME.
func (s *Supervisor) agentBoot(req *guestv1.StartRequest, hostname string) agentsocket.Boot {
	b := req.GetAgent()
	beat := agentsocket.Heartbeat{
		Required: b.GetBeatRequired(), Interval: milliseconds(b.GetBeatIntervalMs()), HungAfter: milliseconds(b.GetHungAfterMs()), Durable: milliseconds(b.GetDurableMs()),
	}
	for _, ms := range b.GetSilencesMs() {
		beat.Silences = append(beat.Silences, milliseconds(ms))
	}
	return agentsocket.Boot{
		ExecID: req.GetExecId(), User: req.GetUser(), Hostname: hostname, AgentID: b.GetAgentId(), Number: b.GetIncarnation(),
		Observation: b.GetObservation(), Files: b.GetFiles(), Checkpoint: b.GetCheckpoint(), Model: b.GetModel(), OutputTokens: b.GetUsedOutputTokens(),
		JournalBytes: min(b.GetJournalBytes(), journal.MaxJournal), Bounds: bounds(b), Work: b.Work, Heartbeat: beat, Phase: b.GetPhase(), Calls: callLimits(b.GetCalls()), Redactor: s.redactorOf(req),
	}
}

// Follow sends the news of incarnations. It ends with its connection or when the supervisor stops.
func (v *agentService) Follow(ctx context.Context, _ *guestv1.FollowRequest, send func(*guestv1.FollowResponse) error) error {
	err := v.s.agents.Follow(ctx, func(n agentsocket.News) error {
		news := &guestv1.IncarnationNews{
			ExecId: n.ExecID, Rows: n.Rows, SilentMs: uint64(n.Silent.Milliseconds()), Armed: n.Armed, Lifecycle: n.Lifecycle,
			Ready: n.Ready, Hung: n.Hung, OpenRequests: n.Open, PauseMark: n.PauseMark,
			ChildrenInputTokens: n.Children.InputTokens, ChildrenCostMicroUsd: n.Children.CostMicroUSD, HeapUsedMb: n.HeapUsedMB,
			SpentInputTokens: n.Spent.InputTokens, SpentCostMicroUsd: n.Spent.CostMicroUSD,
		}
		for _, r := range n.Requests {
			news.Requests = append(news.Requests, &guestv1.AgentRequest{Number: r.Number, Op: r.Op, Json: r.Body})
		}
		return send(&guestv1.FollowResponse{News: news})
	})
	switch {
	case errors.Is(err, agentsocket.ErrManyFollowers):
		return rpc.Errorf(rpc.ResourceExhausted, "%v", err)
	case errors.Is(err, agentsocket.ErrStopping):
		return rpc.Errorf(rpc.Aborted, "%v", err)
	}
	return err
}

// Answer answers a request of an incarnation.
func (v *agentService) Answer(_ context.Context, req *guestv1.AnswerRequest) (*guestv1.AnswerResponse, error) {
	if req.GetCode() == "" && !json.Valid(req.GetJson()) {
		return nil, rpc.Errorf(rpc.InvalidArgument, "the answer is no JSON")
	}
	waits := v.s.agents.Answer(req.GetExecId(), req.GetNumber(), agentsocket.Decision{Result: req.GetJson(), Code: req.GetCode(), Message: req.GetMessage()})
	return &guestv1.AnswerResponse{Waits: waits}, nil
}

// Pause tells an incarnation that its agent is paused, or is not any more.
func (v *agentService) Pause(_ context.Context, req *guestv1.PauseRequest) (*guestv1.PauseResponse, error) {
	if len(req.GetObservation()) > 0 && !json.Valid(req.GetObservation()) {
		return nil, rpc.Errorf(rpc.InvalidArgument, "the observation is no JSON")
	}
	running := v.s.agents.Pause(req.GetExecId(), agentsocket.Pause{Mark: req.GetMark(), Message: req.GetMessage(), Observation: req.GetObservation(), Phase: req.GetPhase()})
	return &guestv1.PauseResponse{Running: running}, nil
}

// Allot tells an incarnation what the children of its agent have of the budget.
func (v *agentService) Allot(_ context.Context, req *guestv1.AllotRequest) (*guestv1.AllotResponse, error) {
	running := v.s.agents.Allot(req.GetExecId(),
		calls.Amount{InputTokens: req.GetChildrenInputTokens(), CostMicroUSD: req.GetChildrenCostMicroUsd()},
		calls.Amount{InputTokens: req.GetSpentInputTokens(), CostMicroUSD: req.GetSpentCostMicroUsd()})
	return &guestv1.AllotResponse{Running: running}, nil
}

// Look says how files and limits are now.
func (v *agentService) Look(_ context.Context, req *guestv1.LookRequest) (*guestv1.LookResponse, error) {
	seen, reply := agentsocket.Look(v.s.as, cmp.Or(req.GetUser(), v.s.cfg.Boot.GetUser()), req.GetPaths()), new(guestv1.LookResponse)
	for _, path := range req.GetPaths() {
		f, looked := seen.Files[path]
		if !looked {
			return nil, rpc.Errorf(rpc.InvalidArgument, "too many paths, or too long ones")
		}
		reply.Files = append(reply.Files, &guestv1.SeenFile{Exists: f.Exists, Size: f.Size, Modified: f.Modified, Inode: f.Inode, Sum: f.Sum})
	}
	reply.Limits = seen.Limits
	return reply, nil
}
