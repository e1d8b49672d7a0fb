package supervisor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"strconv"
	"time"

	calls "github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/runtime/supervisor/agentsocket"
	"github.com/agbox/agbox/runtime/supervisor/probes"
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
	seen, reply := agentsocket.Look(v.s.as, cmp.Or(req.GetUser(), v.s.boot().GetUser()), req.GetPaths()), new(guestv1.LookResponse)
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

// bounds converts which calls an incarnation may make.
func bounds(b *guestv1.AgentBoot) agentsocket.Bounds {
	return agentsocket.Bounds{
		Context: calls.Limits{
			Aging:      cmp.Or(b.GetContextAging(), calls.Default.Aging),
			Dying:      cmp.Or(b.GetContextDying(), calls.Default.Dying),
			FinalCalls: cmp.Or(b.GetContextFinalCalls(), calls.Default.FinalCalls),
		},
		Budget:   calls.Budget{InputTokens: b.GetBudgetInputTokens(), CostMicroUSD: b.GetBudgetCostMicroUsd()},
		Former:   calls.Amount{InputTokens: b.GetUsedInputTokens(), CostMicroUSD: b.GetUsedCostMicroUsd()},
		Children: calls.Amount{InputTokens: b.GetChildrenInputTokens(), CostMicroUSD: b.GetChildrenCostMicroUsd()},
		Spent:    calls.Amount{InputTokens: b.GetSpentInputTokens(), CostMicroUSD: b.GetSpentCostMicroUsd()},
		Crashes:  b.GetCrashes(),
		Reading:  b.GetPlanningTools(),
	}
}

// activityOf returns what the processes of an exec do.
func (s *Supervisor) activityOf(execID string) (a agentsocket.Activity) {
	a.Stopped = true
	e, _ := s.registry.get(execID)
	if e == nil {
		return a
	}
	ch := s.registry.childOf(e)
	if ch == nil {
		return a
	}
	t := &tree{leader: ch.pid, mark: ch.mark, marker: markerVariable + "=" + e.id, known: make(map[key]bool)}
	s.look.do(func() {
		for _, p := range t.look(true) {
			state, work := workOf(p.pid)
			a.Stopped = a.Stopped && (state == 'T' || state == 't')
			a.Work += work // in any order
		}
	})
	return a
}

// workOf returns the state of a process and a number that changes when the process uses the
// processor, reads or writes, or waits for a child. For a process of another user the kernel
// tells about the processor only.
func workOf(pid int) (state byte, work uint64) {
	var stat [statSize]byte
	f, ok := fieldsOfStat(readProc(pid, "stat", stat[:]))
	if !ok {
		return 'X', 0
	}
	h := fnv.New64a()
	_, _ = h.Write(strconv.AppendInt(nil, int64(pid), 10))
	for _, i := range [...]int{statUserTime, statSystemTime, statReapedUser, statReapedTime, statStart} {
		_, _ = h.Write([]byte{' '})
		_, _ = h.Write(f[i])
	}
	var io [ioSize]byte
	_, _ = h.Write(readProc(pid, "io", io[:]))
	return f[statState][0], h.Sum64()
}

// ioSize is more than /proc/PID/io has: seven names and numbers.
const ioSize = 512

// callLimits converts how long the calls of a program may take.
func callLimits(c *guestv1.CallLimits) probes.Limits {
	limits := probes.Limits{
		Connect: milliseconds(c.GetConnectMs()), Response: milliseconds(c.GetResponseMs()),
		LLMTotal: milliseconds(c.GetLlmTotalMs()), LLMChunk: milliseconds(c.GetLlmChunkMs()),
		Tool: milliseconds(c.GetToolMs()), Tools: make(map[string]time.Duration, len(c.GetToolsMs())),
	}
	for name, ms := range c.GetToolsMs() {
		limits.Tools[name] = milliseconds(ms)
	}
	return limits
}

// killCall kills the processes of a tool that "agbox-agent tool" has not ended in time, and
// what they have started.
func (s *Supervisor) killCall(mark string) {
	t := &tree{leader: -1, marker: probes.CallVariable + "=" + mark, known: make(map[key]bool)}
	s.killRepeatedly(func() []proc { return t.look(false) })
}

// maxDrain bounds a drain. It is a little more than the longest that a daemon asks for.
const maxDrain = 70 * time.Second

// drainPlan has the times of a drain.
type drainPlan struct {
	// term is when SIGTERM goes to the process group. abort is when the program should abort
	// its calls. kill is when SIGKILL goes to the tree.
	term, abort, kill time.Time
}

// planDrain makes the plan for a drain that begins now, of an incarnation in that state of
// its life. One that loads its state has no step under way.
func planDrain(req *guestv1.DrainRequest, lifecycle string, now time.Time) drainPlan {
	step := milliseconds(uint64(req.GetStepMs()))
	if lifecycle == journal.Hydrating || lifecycle == journal.Booting && req.GetReports() {
		step = 0
	}
	term := now.Add(milliseconds(uint64(req.GetPreStopMs())))
	abort := term.Add(step)
	return drainPlan{term, abort, abort.Add(milliseconds(uint64(req.GetCleanupMs()) + uint64(req.GetBufferMs())))}
}

// follow waits for the time of SIGTERM and calls term with what is left until SIGKILL. It
// returns early, without a call, if the incarnation ends or the supervisor stops.
func (p drainPlan) follow(ended, stopping <-chan struct{}, term func(grace time.Duration)) {
	timer := time.NewTimer(time.Until(p.term))
	defer timer.Stop()
	select {
	case <-timer.C:
		term(time.Until(p.kill))
	case <-ended:
	case <-stopping: // the stop ends everything itself
	}
}

// Drain drains an incarnation.
func (v *agentService) Drain(ctx context.Context, req *guestv1.DrainRequest) (*guestv1.DrainResponse, error) {
	longest := milliseconds(uint64(req.GetPreStopMs()) + uint64(req.GetStepMs()) + uint64(req.GetCleanupMs()) + uint64(req.GetBufferMs()))
	if longest > maxDrain {
		return nil, rpc.Errorf(rpc.InvalidArgument, "a drain takes at most %v, and this one %v", maxDrain, longest)
	}
	e, err := (&service{v.s}).decided(ctx, req.GetExecId())
	if e == nil || err != nil {
		return &guestv1.DrainResponse{}, err
	}
	return &guestv1.DrainResponse{Running: v.s.drain(e, req)}, nil
}

// drain begins the drain of an incarnation, unless it has begun before. Its end then counts
// as drained, however it comes. It returns false if the exec is no running incarnation.
func (s *Supervisor) drain(e *execution, req *guestv1.DrainRequest) bool {
	ch := s.registry.childOf(e)
	if ch == nil || !s.agents.Running(e.id) {
		return false
	}
	// The cause comes first, because the program may exit as soon as it is told.
	if running, _ := s.children.signal(ch, 0, guestv1.EndCause_END_CAUSE_DRAIN); !running {
		return false
	}
	var plan drainPlan
	begun, journal := s.agents.Drain(e.id, func(lifecycle string) time.Time {
		plan = planDrain(req, lifecycle, time.Now())
		return plan.abort
	})
	if begun && s.registry.enter(&s.work) {
		go func() {
			defer s.work.Done()
			plan.follow(e.ended, s.stopping, func(grace time.Duration) {
				s.cancel(e, grace, guestv1.EndCause_END_CAUSE_DRAIN)
			})
		}()
		journal()
	}
	return true
}
