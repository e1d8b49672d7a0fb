package supervisor

import (
	"context"
	"time"

	"github.com/agbox/agbox/agents/journal"
	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

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
