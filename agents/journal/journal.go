// Package journal has the rows of an agent's journal and the rules for them. The
// supervisor accepts a report only if its row follows the rows before it. The daemon
// applies the same rules when it reads the journal, because root in a sandbox can write
// the file.
package journal

import (
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/agents/gate"
)

// Summary is what the rows of an incarnation come to.
type Summary struct {
	// Rows is the number of rows.
	Rows uint64
	// Lifecycle is the newest state; Booting before any was reported.
	Lifecycle string
	// Phase is the phase of the agent, as far as it depends on this incarnation.
	Phase string
	Used  Used
	Steps uint64
	// Said is the last thing that the agent said.
	Said string
	// Error is the last error that the program reported, unless it has completed a step or turn
	// since. Stack and RetryAfter belong to it.
	Error, Stack string
	RetryAfter   time.Duration
	// Outcome is empty until one is reported. Message explains it.
	Outcome, Message string
	// Turns is the number of turns that are complete.
	Turns uint64
	// Percent is the highest percentage of the context, and Context the word for it.
	Percent uint32
	Context string
	// OverBudget means that the budget did not admit a call to a model, which was estimated
	// to use Estimate.
	OverBudget bool
	Estimate   Used
	// LLMCalls and ToolCalls are how many calls have begun, and LastTool is the last tool.
	LLMCalls, ToolCalls uint64
	LastTool            string
	// Totals are the newest that its beats had.
	Totals Totals
	// Asked means that the program has asked for something before it reported anything. Drained
	// means that the supervisor has begun to drain the incarnation.
	Asked, Drained bool
	// Checkpoints are the newest ones.
	Checkpoints Marks
	// Observation is the newest one that the program has taken, or 0.
	Observation uint64
}

// Spoke reports whether the program has reported anything, or has asked for anything.
func (s Summary) Spoke() bool { return s.Rows > 1 || s.Rows == 1 && !s.Drained }

// OnlyAsked reports whether the program has reported nothing, and has asked for something.
func (s Summary) OnlyAsked() bool { return s.Rows == 1 && s.Asked }

// Start is the Summary before the first row of an incarnation that works from its start.
// One that must report that it is ready begins with the Phase Pending.
func Start() Summary { return Summary{Lifecycle: Booting, Phase: Executing, Context: gate.Healthy} }

// Next returns the summary with one more row. The error is a Refusal if the row may not
// follow.
func (s Summary) Next(r Row) (_ Summary, err error) {
	if len(r.Text) > textBound(r.Op) || !printable(r.Text) {
		return s, refuse("A text has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", textBound(r.Op))
	}
	switch r.Op {
	case Hello, Picture:
	case Asked:
		s.Asked = true
	case Beat:
		if s, err = s.nextOfBeat(r.Totals); err != nil {
			return s, err
		}
	case Send:
		if err := checkSend(r); err != nil {
			return s, err
		}
	case State:
		again := s.Drained && s.Lifecycle == r.State && r.State == Draining // the supervisor said so first
		if !again && !slices.Contains(follows[s.Lifecycle], r.State) {
			return s, refuse("The state %.32q may not follow %s; possible are: %s.", r.State, s.Lifecycle, orNone(follows[s.Lifecycle]))
		}
		s.Lifecycle = r.State
		if s.Phase == Pending && (r.State == Ready || r.State == Executing) {
			s.Phase = Executing
		}
	case Phase:
		if !slices.Contains(phases[s.Phase], r.State) {
			return s, refuse("The phase %.32q may not follow %s; possible are: %s.", r.State, s.Phase, orNone(phases[s.Phase]))
		}
		s.Phase = r.State
	case Drain:
		if s.Drained {
			return s, refuse("The drain has begun before.")
		}
		if s.Drained = true; s.Lifecycle != Terminated {
			s.Lifecycle = Draining
		}
	case Usage:
		if r.Used == nil || !s.Used.mayBecome(*r.Used) {
			return s, refuse("A usage is the total of this incarnation: it may not go down (it is %d input tokens, %d output tokens, %d millionths of a dollar) and is at most %d.",
				s.Used.InputTokens, s.Used.OutputTokens, s.Used.CostMicroUSD, uint64(maxCount))
		}
		s.Used = *r.Used
	case Step:
		if r.Steps < s.Steps || r.Steps > maxCount {
			return s, refuse("The number of completed steps may not go down (it is %d) and is at most %d.", s.Steps, uint64(maxCount))
		}
		s.Steps = r.Steps
		s = s.withoutError()
	case Say:
		s.Said = r.Text
	case Error:
		if s, err = s.nextOfError(r); err != nil {
			return s, err
		}
	case Observed:
		if r.Observation < s.Observation || r.Observation > maxCount {
			return s, refuse("Observation %d was taken before; there is no earlier one to take.", s.Observation)
		}
		s.Observation = r.Observation
		switch r.State {
		case "":
		case Executing, Planning: // it goes on with that
			if s.Phase != Pending {
				s.Phase = r.State
			}
		default:
			return s, refuse("The agent goes on by EXECUTING or PLANNING, not by %.32q.", r.State)
		}
	case Checkpoint:
		if s.Checkpoints, err = s.Checkpoints.next(r.Mark); err != nil {
			return s, err
		}
	case Done:
		switch {
		case r.Outcome != Complete && r.Outcome != Abort && r.Outcome != Fail:
			return s, refuse("The outcome %.32q is none of: %s, %s, %s.", r.Outcome, Complete, Abort, Fail)
		case s.Outcome != "" && s.Outcome != r.Outcome:
			return s, refuse("The outcome %s was reported before and cannot change.", s.Outcome)
		}
		s.Outcome, s.Message = r.Outcome, r.Text
	case Turn, Context, Gate:
		return s.nextOfContext(r)
	case Call:
		return s.nextOfCall(r)
	default:
		return s, refuse("There is no report %.32q.", r.Op)
	}
	s.Rows++
	return s, nil
}

// nextOfBeat returns the summary with the totals of a beat, or nil if it has none. A total that
// goes down is not believed: the highest counts.
func (s Summary) nextOfBeat(t *Totals) (Summary, error) {
	if t == nil {
		return s, nil
	}
	if max(t.Step, t.Steps, t.LLMCalls, t.ToolCalls) > maxCount {
		return s, refuse("Each total of a beat is at most %d.", uint64(maxCount))
	}
	s.Totals = s.Totals.Then(*t)
	return s, nil
}

// nextOfCall returns the summary with one more row of the op Call.
func (s Summary) nextOfCall(r Row) (Summary, error) {
	switch {
	case !slices.Contains([]string{Begin, End, Aborted}, r.Phase):
		return s, refuse("The phase of a call is %s, %s or %s, not %.32q.", Begin, End, Aborted, r.Phase)
	case !slices.Contains([]string{Tool, LLM, Network}, r.Kind):
		return s, refuse("The kind of a call is %s, %s or %s, not %.32q.", Tool, LLM, Network, r.Kind)
	case r.Invocation == "" || len(r.Invocation) > MaxInvocation || !printable(r.Invocation) || strings.ContainsAny(r.Invocation, "\n\t"):
		return s, refuse("The id of a call has 1 to %d bytes of UTF-8 and no control characters.", MaxInvocation)
	case len(r.Name) > MaxName || !printable(r.Name):
		return s, refuse("The name of a call has at most %d bytes of UTF-8 and no control characters.", MaxName)
	case len(r.Result) > MaxResult || len(r.Result) > 0 && (r.Phase != End || r.ResultBytes == nil || *r.ResultBytes < uint64(len(r.Result))):
		return s, refuse("The result of a call comes with its end, and has at most %d bytes.", MaxResult)
	case r.ResultFile != nil && (r.Phase != End || r.ResultBytes == nil || *r.ResultBytes > MaxResultFile || r.ResultFile.At > maxCount):
		return s, refuse("A result in a file comes with the end of its call, and has at most %d bytes.", MaxResultFile)
	case len(r.Reason) > MaxText || !printable(r.Reason):
		return s, refuse("The error of a call has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", MaxText)
	}
	if r.Phase == Begin {
		switch r.Kind {
		case LLM:
			s.LLMCalls++
		case Tool:
			s.ToolCalls++
			s.LastTool = r.Name
		}
	}
	s.Rows++
	return s, nil
}

// nextOfContext returns the summary with one more row of the op Turn, Context or Gate.
func (s Summary) nextOfContext(r Row) (Summary, error) {
	switch {
	case r.Percent > gate.MaxPercent:
		return s, refuse("A context is at most %d %% full.", gate.MaxPercent)
	case !gate.MayFollow(s.Context, r.Context):
		return s, refuse("The context %.32q may not follow %s.", r.Context, s.Context)
	}
	before := s
	s.Percent, s.Context = max(s.Percent, r.Percent), r.Context
	switch r.Op {
	case Turn:
		s.Turns++
		s = s.withoutError()
	case Gate:
		switch {
		case r.Kind != Tool && r.Kind != LLM:
			return before, refuse("The kind of call %.32q is none of: %s, %s.", r.Kind, Tool, LLM)
		case len(r.Name) > MaxName || !printable(r.Name):
			return before, refuse("The name of a tool has at most %d bytes of UTF-8 and no control characters.", MaxName)
		case r.Used != nil && !(Used{}).mayBecome(*r.Used):
			return before, refuse("Each number of an estimate is at most %d.", uint64(maxCount))
		}
		if r.Refused && r.Kind == LLM {
			s.OverBudget = true
			if r.Used != nil {
				s.Estimate = *r.Used
			}
		}
	}
	s.Rows++
	return s, nil
}

const (
	// MaxStack bounds the stack of an error, in bytes.
	MaxStack = 2 << 10
	// MaxRetryAfter is the longest time after which a program may ask to be tried again.
	MaxRetryAfter = 24 * time.Hour
)

// nextOfError returns the summary with one more row of the op Error.
func (s Summary) nextOfError(r Row) (Summary, error) {
	switch {
	case r.Text == "":
		return s, refuse("An error has a text that says what happened.")
	case len(r.Stack) > MaxStack || !printable(r.Stack):
		return s, refuse("A stack has at most %d bytes of UTF-8 and no control characters but line ends and tabs.", MaxStack)
	case r.RetryAfterMS > uint64(MaxRetryAfter/time.Millisecond):
		return s, refuse("A program is tried again after at most %v.", MaxRetryAfter)
	}
	s.Error, s.Stack, s.RetryAfter = r.Text, r.Stack, time.Duration(r.RetryAfterMS)*time.Millisecond
	return s, nil
}

// withoutError is the summary of a program that got on after its error.
func (s Summary) withoutError() Summary {
	s.Error, s.Stack, s.RetryAfter = "", "", 0
	return s
}

// The phases of an agent that it can report, and Pending, in which it has not begun to work.
// Executing is one too.
const (
	Pending   = "PENDING"
	Planning  = "PLANNING"
	Verifying = "VERIFYING"
)

// phases has the phases that may be reported in a phase.
var phases = map[string][]string{
	Pending:   {Planning},
	Planning:  {Executing},
	Executing: {Verifying, Planning},
	Verifying: {Executing, Planning},
}

// follows has the states that may follow a state.
var follows = map[string][]string{
	Booting:   {Hydrating, Draining, Terminated},
	Hydrating: {Ready, Draining, Terminated},
	Ready:     {Executing, Draining},
	Executing: {Draining, Terminated},
	Draining:  {Terminated},
}

func orNone(states []string) string {
	if len(states) == 0 {
		return "none"
	}
	return strings.Join(states, ", ")
}

// Counts are the completed steps and the calls of the incarnation: reported one by one, or as
// totals of beats. A program may do both, so the higher number counts.
func (s Summary) Counts() (steps, llmCalls, toolCalls uint64) {
	return max(s.Steps, s.Totals.Steps), max(s.LLMCalls, s.Totals.LLMCalls), max(s.ToolCalls, s.Totals.ToolCalls)
}

// LastStep is the step that the program was in last, or nil. If its beats do not say it, it is
// the number of completed steps.
func (s Summary) LastStep() *uint64 {
	switch {
	case s.Totals.InStep:
		return &s.Totals.Step
	case s.Totals == Totals{} && s.Steps > 0:
		return &s.Steps
	}
	return nil
}

// Then returns the totals after those of a newer beat.
func (t Totals) Then(newer Totals) Totals {
	newer.Steps, newer.LLMCalls, newer.ToolCalls = max(t.Steps, newer.Steps), max(t.LLMCalls, newer.LLMCalls), max(t.ToolCalls, newer.ToolCalls)
	return newer
}

// Between returns the states on the shortest way from one state to another, without the first.
// It is nil if the second cannot follow.
func Between(from, to string) []string {
	came := map[string]string{from: ""}
	for at := []string{from}; len(at) > 0; at = at[1:] {
		for _, next := range follows[at[0]] {
			if _, been := came[next]; been {
				continue
			}
			if came[next] = at[0]; next != to {
				at = append(at, next)
				continue
			}
			var way []string
			for state := to; state != from; state = came[state] {
				way = append(way, state)
			}
			slices.Reverse(way)
			return way
		}
	}
	return nil
}
