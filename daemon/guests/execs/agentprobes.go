package execs

import (
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/fault"
)

// takesAgent refuses an incarnation of an agent if the supervisor is too old for its probes
// or its work. It would run the program without them, and never say that it is ready.
func (r *Runner) takesAgent(lk *links.Link, req *agboxv1.CreateExecRequest) error {
	a, ok := r.ledger.AgentOf(req.GetSandboxId(), req.GetExecId())
	if !ok || lk.Conn.Agents() {
		return nil
	}
	var cannot, without string
	switch p := agents.RulesOf(a.Spec).Probes; {
	case p.AwaitReady || p.AwaitReport || a.Spec.GetProbes() != nil:
		cannot, without = "check whether a program is ready or works", "without probes and with ready: start"
	case a.Spec.GetWork() != "":
		cannot, without = "hand over the work of an agent", "without work"
	default:
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
		"Sandbox %s was started by an older agbox, whose supervisor cannot %s. Create a new sandbox, or spawn the agent %s.",
		req.GetSandboxId(), cannot, without).With("sandbox_id", req.GetSandboxId())
}

// probesOf converts the probes of a program for its supervisor.
func probesOf(p agents.Probes) *guestv1.Probes {
	return &guestv1.Probes{
		Liveness: probeOf(p.Liveness), Readiness: probeOf(p.Readiness), Startup: probeOf(p.Startup),
		AwaitReport: p.AwaitReport, AwaitReady: p.AwaitReady,
	}
}

func probeOf(p agents.Probe) *guestv1.Probe {
	return &guestv1.Probe{
		Port: uint32(p.Port), Path: p.Path, Command: p.Command, Report: p.Report, MaxSilenceMs: roundedUp(p.MaxSilence),
		PeriodMs: roundedUp(p.Period), TimeoutMs: roundedUp(p.Timeout), Failures: p.Failures,
	}
}

// callsOf converts how long the calls of a program may take.
func callsOf(c agents.CallLimits) *guestv1.CallLimits {
	limits := &guestv1.CallLimits{
		ConnectMs: roundedUp(c.Connect), ResponseMs: roundedUp(c.Response), LlmTotalMs: roundedUp(c.LLMTotal), LlmChunkMs: roundedUp(c.LLMChunk),
		ToolMs: roundedUp(c.Tool), ToolsMs: make(map[string]uint64, len(c.Tools)),
	}
	for name, d := range c.Tools {
		limits.ToolsMs[name] = roundedUp(d)
	}
	return limits
}

// roundedUp returns milliseconds. Nothing that is set becomes 0.
func roundedUp(d time.Duration) uint64 {
	return uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
}
