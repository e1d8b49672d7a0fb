package incarnations

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// reports is what the program of an incarnation has reported, and was not consumed yet.
type reports struct {
	// at is the place after what was read.
	at place
	// events are what follows from the rows after the place before. Each has the number of
	// its row as journal_upto.
	events []*agboxv1.AgentEvent
	// checkpoints are the events of the newest checkpoints, in their order.
	checkpoints []*agboxv1.AgentEvent
	// sent are the messages that it has sent.
	sent []ledger.Sent
	// unreadable means that there is a journal that cannot be read.
	unreadable bool
	// size is what is read of it, and more means that the rest is left for later.
	size piece
	more bool
}

// reports reads a piece of the journal of the agent's incarnation, from where it was read
// last. The file is in a folder that root in the sandbox can write, so a bad one costs only this agent
// its reports.
func (r *Runner) reports(a ledger.Agent) reports {
	at, rows := r.placeOf(a)
	found := reports{at: at}
	context, phase := at.Sum.Context, at.Sum.Phase
	add := func(event *agboxv1.AgentEvent, sum journal.Summary) {
		event.Incarnation, event.JournalUpto = a.Incarnation.N, sum.Rows
		found.events = append(found.events, event)
	}
	var err error
	found.at.Tail, err = readJournalWhile(r.paths.SandboxLogs(a.Incarnation.SandboxID), a.Incarnation.ExecID, at.Tail, func(row journal.Row, sum journal.Summary) bool {
		if row.Op == journal.Send && sum.Rows > a.Incarnation.JournalUpto {
			found.sent = append(found.sent, ledger.Sent{Row: sum.Rows, To: row.To, Stream: row.Stream, Key: row.Key, Text: row.Text})
			found.size.addMessage(row, r.copies(row.Stream))
		}
		if event := rowEvent(row); event != nil {
			if row.Op == journal.Checkpoint {
				event.Incarnation, event.JournalUpto = a.Incarnation.N, sum.Rows
				found.keepCheckpoint(event)
			} else {
				add(event, sum)
			}
		}
		if sum.Phase != phase {
			for _, event := range phaseEvents(phase, sum) {
				add(event, sum)
			}
			phase = sum.Phase
		}
		if sum.Context != context {
			context = sum.Context
			add(contextEvent(sum), sum)
		}
		found.more = found.size.full(len(found.events))
		return !found.more
	})
	if found.unreadable = err != nil; !found.more {
		found.at.tried = rows
	}
	if bad := found.at.Bad - at.Bad; err != nil || bad > 0 {
		r.log.Warn("rows of the journal of an incarnation are left out", "agent_id", a.ID, "exec_id", a.Incarnation.ExecID, "rows", bad, "error", err)
	}
	if event := progress(a, found.at.Sum, len(found.sent) > 0); event != nil {
		found.events = append([]*agboxv1.AgentEvent{event}, found.events...)
	}
	return found
}

// readPast reads the journal of an earlier incarnation, in the sandbox in which that ran.
func (r *Runner) readPast(a ledger.Agent, n uint32, each func(journal.Row, journal.Summary)) (journal.Tail, error) {
	in := a.SandboxOf(n)
	if in == "" {
		return journal.Beginning(), fmt.Errorf("the sandbox of incarnation %d is not known any more: %w", n, logs.ErrNotExist)
	}
	return readJournal(r.paths.SandboxLogs(in), agents.ExecID(a.ID, n), journal.Beginning(), each)
}

// readJournal reads the journal of an exec from a place on; one that does not exist is
// empty.
func readJournal(dir, execID string, from journal.Tail, each func(journal.Row, journal.Summary)) (journal.Tail, error) {
	return readJournalWhile(dir, execID, from, func(row journal.Row, sum journal.Summary) bool {
		if each != nil {
			each(row, sum)
		}
		return true
	})
}

// readJournalWhile is readJournal until each returns false.
func readJournalWhile(dir, execID string, from journal.Tail, each func(journal.Row, journal.Summary) bool) (journal.Tail, error) {
	d, err := logs.OpenDir(dir)
	if err != nil {
		return from, err
	}
	defer func() { _ = d.Close() }()
	file, err := d.OpenJournal(execID)
	if errors.Is(err, logs.ErrNotExist) {
		return from, nil
	}
	if err != nil {
		return from, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(from.Offset, io.SeekStart); err != nil {
		return from, err
	}
	return from.ReadWhile(file, each)
}

// spoke reports whether the program has used the agent socket. If the journal cannot be
// read, it may have: exit code 0 alone is then no success.
func (r reports) spoke() bool { return r.at.Sum.Spoke() || r.unreadable }

// outcomes has the outcomes by their names in a journal.
var outcomes = map[string]agboxv1.AgentOutcome{
	journal.Complete: agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE,
	journal.Abort:    agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT,
	journal.Fail:     agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL,
}

// rowEvent returns the event that follows from a row, or nil if the row only counts in the
// totals.
func rowEvent(row journal.Row) *agboxv1.AgentEvent {
	switch row.Op {
	case journal.Checkpoint:
		return saved(row.Mark)
	case journal.Observed:
		if row.State == "" {
			return nil // it says itself how it goes on
		}
		return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: phaseStates[row.State], Observation: row.Observation}
	case journal.Done:
		return &agboxv1.AgentEvent{
			Type:    agboxv1.AgentEventType_AGENT_DONE_REPORTED,
			Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: outcomes[row.Outcome], Message: row.Text}},
		}
	}
	return nil
}

// phaseStates has the states of an agent by their names in a journal.
var phaseStates = map[string]agboxv1.AgentState{
	journal.Planning:  agents.Planning,
	journal.Executing: agents.Executing,
	journal.Verifying: agents.Verifying,
}

// phaseEvents returns the events of a change of the phase. An agent that begins to work is
// either new, or goes on after a pause; the ledger leaves out the events that do not fit.
func phaseEvents(before string, sum journal.Summary) (events []*agboxv1.AgentEvent) {
	after := sum.Phase
	phase := func(state agboxv1.AgentState) {
		events = append(events, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: state})
	}
	if before == journal.Pending && after == journal.Executing {
		phase(agents.Planning)
	}
	phase(phaseStates[after])
	if before == journal.Pending {
		events = append(events, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: phaseStates[after], Observation: sum.Observation})
	}
	return events
}

// progress returns the event with the new totals of an agent, or nil if they are as
// recorded and no rows are consumed with it.
func progress(a ledger.Agent, sum journal.Summary, consumes bool) *agboxv1.AgentEvent {
	steps, llmCalls, toolCalls := sum.Counts()
	if !consumes && sum.Used == (journal.Used{}) && steps == 0 && sum.Said == "" && !sum.OverBudget && llmCalls+toolCalls == 0 {
		return nil
	}
	before, used := a.Incarnation.Before, usage(sum.Used)
	total := &agboxv1.AgentProgress{
		Incarnation: used,
		Total: &agboxv1.AgentUsage{
			InputTokens:  before.GetTotal().GetInputTokens() + used.GetInputTokens(),
			OutputTokens: before.GetTotal().GetOutputTokens() + used.GetOutputTokens(),
			CostMicroUsd: before.GetTotal().GetCostMicroUsd() + used.GetCostMicroUsd(),
		},
		Steps: before.GetSteps() + steps, LastMessage: cmp.Or(sum.Said, before.GetLastMessage()),
		LlmCalls: before.GetLlmCalls() + llmCalls, ToolCalls: before.GetToolCalls() + toolCalls,
	}
	if sum.OverBudget {
		total.Refused = usage(sum.Estimate)
	}
	if !consumes && a.ProgressAt != 0 && proto.Equal(total, a.Progress) {
		return nil
	}
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_PROGRESS, Incarnation: a.Incarnation.N, JournalUpto: sum.Rows,
		Details: &agboxv1.AgentEvent_Progress{Progress: total},
	}
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
	if !r.at.Sum.Spoke() {
		return agboxv1.AgentLifecycle_AGENT_LIFECYCLE_UNSPECIFIED
	}
	return lifecycles[r.at.Sum.Lifecycle]
}

// contexts has the words for a context by their names in a journal.
var contexts = map[string]agboxv1.AgentContext{
	gate.Healthy:  agboxv1.AgentContext_AGENT_CONTEXT_HEALTHY,
	gate.Aging:    agboxv1.AgentContext_AGENT_CONTEXT_AGING,
	gate.Dying:    agboxv1.AgentContext_AGENT_CONTEXT_DYING,
	gate.Draining: agboxv1.AgentContext_AGENT_CONTEXT_DRAINING,
	gate.Dead:     agboxv1.AgentContext_AGENT_CONTEXT_DEAD,
}

// contextEvent records the word for the context, which a row has changed.
func contextEvent(sum journal.Summary) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_CONTEXT,
		Details: &agboxv1.AgentEvent_Gauge{Gauge: &agboxv1.AgentGauge{Context: contexts[sum.Context], ContextPercent: sum.Percent}},
	}
}

// succeeded reports whether an exec has ended because its context is used up, so that the
// next incarnation goes on. That one began to die and was then reaped, or ended by itself
// before: after its final calls a program has nothing left to do.
func succeeded(exec *agboxv1.ExecStatus, sum journal.Summary) bool {
	switch sum.Context {
	case gate.Dead:
		return !exec.GetOomKilled()
	case gate.Draining:
		return exec.GetExitCode() == 0 && exec.GetSignal() == 0
	}
	return false
}

// Journal calls each with the rows of the journal of an incarnation after a place and a row,
// and with their numbers, until each fails. It returns the place after them, and the error of
// each. Rows that no supervisor can have written are left out. A journal that does not exist
// has none.
func (r *Runner) Journal(sandboxID, execID string, from journal.Tail, after uint64, each func(number uint64, row []byte) error) (journal.Tail, error) {
	var failed error
	at, err := readJournalWhile(r.paths.SandboxLogs(sandboxID), execID, from, func(row journal.Row, sum journal.Summary) bool {
		if sum.Rows <= after {
			return true
		}
		var line []byte
		if line, failed = journal.Encode(row); failed == nil {
			failed = each(sum.Rows, line[:len(line)-1])
		}
		return failed == nil
	})
	if failed != nil {
		return at, failed
	}
	return at, err
}

// placeOf returns how far the journal of an incarnation was read, and the number of rows of
// which the supervisor has told.
func (r *Runner) placeOf(a ledger.Agent) (at place, rows uint64) {
	k := r.desk.of(a.Incarnation.ExecID)
	if k.read != nil {
		return *k.read, k.news.GetRows()
	}
	at = place{Tail: journal.Beginning()}
	at.Sum.Phase = agents.RulesOf(a.Spec).FirstPhase()
	return at, k.news.GetRows()
}

// One transaction records no more of a journal than this, so that others write in between:
// all updates wait for the one transaction. A row is not divided.
const (
	// maxPiece is the number of events and of copies of messages. The database takes about
	// 10 us for each.
	maxPiece = 1000
	// maxPieceBytes is the size of the copies of messages.
	maxPieceBytes = 1 << 20
)

// piece is how much has been read of a journal.
type piece struct{ copies, bytes int }

// addMessage counts the copies of a message.
func (p *piece) addMessage(row journal.Row, copies int) {
	p.copies += copies
	p.bytes += copies * (len(row.Text) + len(row.Key))
}

// full reports whether a piece, from which that many events follow, is large enough.
func (p piece) full(events int) bool { return p.copies+events >= maxPiece || p.bytes >= maxPieceBytes }

// copies is how many inboxes a message goes to: one, or those of all who have its stream open.
func (r *Runner) copies(stream string) int {
	if stream == "" {
		return 1
	}
	return max(1, r.ledger.Subscribers(stream))
}

// kinds has the kinds of checkpoints by their names in a journal.
var kinds = map[string]agboxv1.CheckpointKind{
	journal.TurnCheckpoint:  agboxv1.CheckpointKind_CHECKPOINT_KIND_TURN,
	journal.StepCheckpoint:  agboxv1.CheckpointKind_CHECKPOINT_KIND_STEP,
	journal.PauseCheckpoint: agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE,
}

// saved returns the event of a checkpoint.
func saved(m *journal.Mark) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_CHECKPOINT,
		Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{
			Seq: m.Seq, CheckpointId: m.ID, Kind: kinds[m.Kind], Crc32: m.CRC32, Bytes: m.Bytes,
			Turn: m.Turn, Step: m.Step, ResumePoint: m.ResumePoint, Format: checkpoint.Version,
		}},
	}
}

// keepCheckpoint adds the event of a checkpoint. Only the newest ones are kept: there are no
// files of the others.
func (r *reports) keepCheckpoint(ev *agboxv1.AgentEvent) {
	r.checkpoints = append(r.checkpoints, ev)
	if len(r.checkpoints) > agents.KeptCheckpoints {
		r.checkpoints = slices.Delete(r.checkpoints, 0, 1)
	}
}
