// Package incarnations starts and ends the incarnations of agents, which are execs, and takes
// over what they leave behind.
package incarnations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Start starts the exec of the agent's incarnation. Its id is derived from the agent and
// the number of the incarnation, so it runs at most once, however often Start is called. If
// no checkpoint is whole, the program is not started, and the event of its end is returned.
func (r *Runner) Start(ctx context.Context, a ledger.Agent) (ended *agboxv1.AgentEvent, err error) {
	inc := a.Incarnation
	env := environment(a)
	files, err := r.hydrate(ctx, a)
	if lost := errHydration(""); errors.As(err, &lost) {
		return unhydrated(a, lost), nil
	}
	if err != nil {
		return nil, err
	}
	maps.Copy(env, files)
	_, err = r.execs.Create(ctx, &agboxv1.CreateExecRequest{
		SandboxId: inc.SandboxID, ExecId: inc.ExecID, RequestKey: inc.ExecID,
		Command: a.Spec.GetCommand(), EnvOverrides: env,
		User: a.Spec.GetUser(), Cwd: a.Spec.GetWorkingDir(),
	})
	return nil, err
}

// environment is what an incarnation gets to know of itself. The variables are listed in
// docs/agents.md.
func environment(a ledger.Agent) map[string]string {
	env := map[string]string{
		"AGBOX_AGENT":       a.Name,
		"AGBOX_AGENT_ID":    a.ID,
		"AGBOX_INCARNATION": strconv.FormatUint(uint64(a.Incarnation.N), 10),
		"AGBOX_ATTEMPT":     strconv.FormatUint(uint64(a.Incarnation.Attempt), 10),
		"AGBOX_CLASS":       a.Class,
		"AGBOX_PARENT":      a.Parent,
	}
	if a.Stack != "" {
		env["AGBOX_STACK"] = a.Stack
	}
	if model := a.Spec.GetModel(); model != "" {
		env["AGBOX_MODEL"] = model
	}
	if hook := a.Spec.GetContextHook(); len(hook) > 0 {
		raw, _ := json.Marshal(hook) // strings
		env["AGBOX_CONTEXT_HOOK"] = string(raw)
	}
	if a.Last != nil {
		env["AGBOX_PREVIOUS_EXIT_CODE"] = strconv.FormatInt(int64(agents.Told(a.Last).GetExitCode()), 10)
	}
	if a.Strategy != "" {
		env["AGBOX_STRATEGY"] = a.Strategy
	}
	maps.Copy(env, a.Spec.GetEnvs())
	if a.Strategy == agents.ReducedFootprint {
		env["AGBOX_MAX_CONTEXT_TOKENS"], env["AGBOX_BROWSER"], env["AGBOX_MAX_CONCURRENT_TOOLS"] = "50000", "0", "1"
		maps.Copy(env, a.Spec.GetRetry().GetReduced().GetEnvs())
	}
	return env
}

// graces are the times between SIGTERM and SIGKILL by the mode of a kill.
var graces = map[agboxv1.KillMode]time.Duration{
	agboxv1.KillMode_KILL_MODE_UNSPECIFIED: 5 * time.Second,
	agboxv1.KillMode_KILL_MODE_TERMINATE:   5 * time.Second,
	agboxv1.KillMode_KILL_MODE_NOW:         0,
	agboxv1.KillMode_KILL_MODE_GRACEFUL:    5 * time.Second,
}

// Kill ends the incarnation. One that does not run is no error.
func (r *Runner) Kill(ctx context.Context, a ledger.Agent, mode agboxv1.KillMode) error {
	return gone(r.execs.Cancel(ctx, a.Incarnation.SandboxID, a.Incarnation.ExecID, graces[mode]))
}

// Reap ends an incarnation that must be replaced. One that does not run is no error.
func (r *Runner) Reap(ctx context.Context, a ledger.Agent) error {
	return gone(r.execs.Reap(ctx, a.Incarnation.SandboxID, a.Incarnation.ExecID, graces[agboxv1.KillMode_KILL_MODE_TERMINATE]))
}

// EndFound ends the exec of the newest incarnation, which was recorded as lost.
func (r *Runner) EndFound(ctx context.Context, a ledger.Agent) error {
	return gone(r.execs.Reap(ctx, a.SandboxID, agents.ExecID(a.ID, a.Incarnations), graces[agboxv1.KillMode_KILL_MODE_TERMINATE]))
}

// gone leaves out the error of an exec that does not run.
func gone(err error) error {
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil
	}
	return err
}

// Exec returns the exec of the agent's incarnation. The error is errdefs.ErrNotFound if it
// was never accepted.
func (r *Runner) Exec(ctx context.Context, a ledger.Agent) (*agboxv1.ExecStatus, error) {
	return r.ledger.Exec(ctx, a.Incarnation.SandboxID, a.Incarnation.ExecID)
}

// End returns the reports that record the end of the agent's incarnation, whose exec has
// ended: first what its program reported, then how it ended. They must be recorded
// together, and then Forget called. What is too much for one transaction was recorded
// before; after is the agent with it.
func (r *Runner) End(ctx context.Context, a ledger.Agent, exec *agboxv1.ExecStatus) (after ledger.Agent, last ledger.Reports, err error) {
	a, reports, err := r.lastPiece(ctx, a)
	if err != nil {
		return a, ledger.Reports{}, err
	}
	events := append(reports.ordered(), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: a.Incarnation.N,
		Details: &agboxv1.AgentEvent_End{End: r.describe(a, exec, reports)},
	})
	return a, ledger.Reports{Events: events, Sent: reports.sent}, nil
}

// describe describes how the agent's incarnation ended.
func (r *Runner) describe(a ledger.Agent, exec *agboxv1.ExecStatus, reports reports) *agboxv1.IncarnationEnd {
	end := &agboxv1.IncarnationEnd{
		Kind: kindOf(a, exec, reports.at.Sum, r.stopping(a)), ExecId: exec.GetExecId(), ExitCode: exec.GetExitCode(), Signal: exec.GetSignal(),
		OomKilled: exec.GetOomKilled(), ErrorMessage: exec.GetError(), Used: usage(reports.at.Sum.Used),
		LifecycleAtEnd: reports.lifecycle(), Spoke: reports.spoke(),
		LastTool: reports.at.Sum.LastTool, Step: reports.at.Sum.LastStep(),
	}
	if end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED {
		end.DrainedFor = agents.DrainedFor(a.Record)
	}
	if reaped(end.GetKind()) {
		end.ErrorMessage = "" // the kind says more than the end of the exec
		return end
	}
	if end.GetErrorMessage() == "" && exec.GetExitCode() != 0 {
		line, stack, err := lastWords(r.paths.SandboxLogs(exec.GetSandboxId()), exec.GetExecId())
		if err != nil {
			r.log.Warn("the last words of an incarnation cannot be read", "agent_id", a.ID, "exec_id", exec.GetExecId(), "error", err)
		}
		end.ErrorMessage, end.ErrorStack = line, stack
	}
	if said := reports.at.Sum; said.Error != "" && end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED && !end.GetOomKilled() {
		end.ErrorMessage, end.ErrorStack = said.Error, cmp.Or(said.Stack, end.GetErrorStack())
		if said.RetryAfter > 0 {
			end.RetryAfter = durationpb.New(said.RetryAfter)
		}
	}
	return end
}

// kindOf says what ended an incarnation. stopping means that its sandbox is to stop.
func kindOf(a ledger.Agent, exec *agboxv1.ExecStatus, sum journal.Summary, stopping bool) agboxv1.IncarnationEndKind {
	switch exec.GetErrorCode() {
	case agboxv1.ErrorReason_EXEC_LOST.String():
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST
	case agboxv1.ErrorReason_FILE_SYSTEM_FULL.String(): // its start could not be written down
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED
	case agboxv1.ErrorReason_AGENT_NOT_ALIVE.String():
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LIVENESS
	case agboxv1.ErrorReason_AGENT_NOT_STARTED.String():
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP
	}
	if exec.GetErrorCode() == agboxv1.ErrorReason_AGENT_REAPED.String() {
		if a.Context == agboxv1.AgentContext_AGENT_CONTEXT_DEAD {
			return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT
		}
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE
	}
	switch {
	case a.Kill != nil:
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED
	case drained(a, exec, stopping):
		if a.OverBudget(agents.RulesOf(a.Spec).Budget) {
			return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET
		}
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
	case succeeded(exec, sum):
		return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT
	}
	return agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
}

// reaped reports whether agbox ended an incarnation because it had to be replaced.
func reaped(kind agboxv1.IncarnationEndKind) bool {
	return kind == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE || kind == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT
}
