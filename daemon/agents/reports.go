package agents

import (
	"cmp"
	"errors"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/journal"
	"github.com/agbox/agbox/logs"
)

// reports is what the program of an incarnation has reported.
type reports struct {
	sum journal.Summary
	// unreadable means that there is a journal that cannot be read.
	unreadable bool
}

// reports reads the journal of the agent's incarnation, whose exec has ended. The file is
// in a folder that root in the sandbox can write, so a bad one costs only this agent its
// reports.
func (r *Runner) reports(a ledger.Agent, exec *agboxv1.ExecStatus) reports {
	sum, bad, err := readJournal(r.paths.SandboxLogs(exec.GetSandboxId()), exec.GetExecId())
	if err != nil || bad > 0 {
		r.log.Warn("rows of the journal of an incarnation are left out", "agent_id", a.ID, "exec_id", exec.GetExecId(), "rows", bad, "error", err)
	}
	return reports{sum: sum, unreadable: err != nil}
}

// readJournal reads the journal of an exec; one that does not exist is empty.
func readJournal(dir, execID string) (sum journal.Summary, bad int, err error) {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return journal.Start(), 0, err
	}
	defer func() { _ = d.Close() }()
	file, err := d.OpenJournal(execID)
	if errors.Is(err, logs.ErrNotExist) {
		return journal.Start(), 0, nil
	}
	if err != nil {
		return journal.Start(), 0, err
	}
	defer func() { _ = file.Close() }()
	return journal.Read(file)
}

// spoke reports whether the program has used the agent socket. If the journal cannot be
// read, it may have: exit code 0 alone is then no success.
func (r reports) spoke() bool { return r.sum.Rows > 0 || r.unreadable }

// outcomes has the outcomes by their names in a journal.
var outcomes = map[string]agboxv1.AgentOutcome{
	journal.Complete: agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE,
	journal.Abort:    agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT,
	journal.Fail:     agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL,
}

// events returns the events of the reports.
func (r reports) events(a ledger.Agent) []*agboxv1.AgentEvent {
	var events []*agboxv1.AgentEvent
	if r.sum.Used != (journal.Used{}) || r.sum.Steps > 0 || r.sum.Said != "" {
		before := a.Progress.GetTotal()
		used := usage(r.sum.Used)
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_PROGRESS, Incarnation: a.Incarnation.N, JournalUpto: r.sum.Rows,
			Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{
				Incarnation: used,
				Total: &agboxv1.AgentUsage{
					InputTokens:  before.GetInputTokens() + used.GetInputTokens(),
					OutputTokens: before.GetOutputTokens() + used.GetOutputTokens(),
					CostMicroUsd: before.GetCostMicroUsd() + used.GetCostMicroUsd(),
				},
				Steps: a.Progress.GetSteps() + r.sum.Steps, LastMessage: cmp.Or(r.sum.Said, a.Progress.GetLastMessage()),
			}},
		})
	}
	if r.sum.Outcome != "" {
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_DONE_REPORTED, Incarnation: a.Incarnation.N, JournalUpto: r.sum.Rows,
			Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: outcomes[r.sum.Outcome], Message: r.sum.Message}},
		})
	}
	return events
}

func usage(u journal.Used) *agboxv1.AgentUsage {
	return &agboxv1.AgentUsage{InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, CostMicroUsd: u.CostMicroUSD}
}

// lifecycles has the states of an incarnation by their names in a journal.
var lifecycles = map[string]agboxv1.AgentLifecycle{
	journal.Booting:    agboxv1.AgentLifecycle_AGENT_LIFECYCLE_BOOTING,
	journal.Hydrating:  agboxv1.AgentLifecycle_AGENT_LIFECYCLE_HYDRATING,
	journal.Ready:      agboxv1.AgentLifecycle_AGENT_LIFECYCLE_READY,
	journal.Executing:  agboxv1.AgentLifecycle_AGENT_LIFECYCLE_EXECUTING,
	journal.Draining:   agboxv1.AgentLifecycle_AGENT_LIFECYCLE_DRAINING,
	journal.Terminated: agboxv1.AgentLifecycle_AGENT_LIFECYCLE_TERMINATED,
}

// lifecycle is the last reported state of the incarnation; unspecified if its program never
// spoke.
func (r reports) lifecycle() agboxv1.AgentLifecycle {
	if r.sum.Rows == 0 {
		return agboxv1.AgentLifecycle_AGENT_LIFECYCLE_UNSPECIFIED
	}
	return lifecycles[r.sum.Lifecycle]
}
