package agentsocket

import (
	"fmt"
	"math"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// Bounds say which calls an incarnation may make, so that this is decided without a daemon.
type Bounds struct {
	Context gate.Limits
	// Budget is that of the agent. Former is what earlier incarnations have used of it, and
	// Crashes how many of them have crashed.
	Budget  gate.Budget
	Former  gate.Amount
	Crashes uint32
	// Children is what the children of the agent have of its budget, and Spent the part of it
	// that ended children have used, which does not come back. Server.mu guards both.
	Children, Spent gate.Amount
	// Reading are the tools that only read.
	Reading []string
}

// The codes of refused calls. Package agentcli makes an exit code of its own of them.
const (
	codeFenced = "FENCED"
	codeBudget = "BUDGET_EXHAUSTED"
	// codeDraining refuses the calls of a step that a drained incarnation must not begin.
	codeDraining = "DRAINING"
)

// ofContext reports whether an op reads or changes the context.
func ofContext(op string) bool {
	return op == journal.Turn || op == journal.Context || op == journal.Gate
}

// decide returns the context after a row, and the refusal if the row is a call that may not
// be made. It completes the row. A refusal is written down only if it has the row tell
// something new: then write is true. mu is held.
func (in *incarnation) decide(r *journal.Row) (after gate.Context, no *refusal, write bool) {
	switch {
	case r.Op == journal.Drain:
		in.context.Drained = true // also if its row cannot be written
		return in.context, nil, true
	case r.Op == journal.Step:
		return in.context.Stepped(), nil, true
	case !ofContext(r.Op):
		return in.context, nil, true
	}
	limits := in.bounds.Context
	after, write = in.context.Reported(r.Percent), true
	switch {
	case r.Op == journal.Turn:
		after = after.Turned(limits)
	case r.Op == journal.Gate && r.Kind == journal.LLM:
		no = in.decideLLM(r, after)
		write = no == nil || r.Refused && !in.sum.OverBudget
	case r.Op == journal.Gate:
		var allowed bool
		if after, allowed = after.Called(limits, r.Final); !allowed {
			no, write = fenced(after, limits), false
		}
	}
	if no != nil && !write && after != in.context { // it has told how full the context is
		*r, write = journal.Row{Op: journal.Context, Percent: r.Percent}, true
	}
	r.Context = after.Word(limits)
	return after, no, write
}

// decideLLM returns the refusal of a call to a model, or nil.
func (in *incarnation) decideLLM(r *journal.Row, c gate.Context) *refusal {
	limits := in.bounds.Context
	if fence, _ := c.Fence(limits); fence == gate.Stopped || c.Word(limits) == gate.Dead {
		return fenced(c, limits)
	}
	var estimate gate.Amount
	if r.Used != nil {
		estimate = r.Used.Bounded()
	}
	b := &in.bounds
	used := b.Former.Plus(in.sum.Used.Bounded())
	children, spent := in.children()
	if !b.Budget.Admits(used.Plus(spent), estimate) { // no child can give anything back
		r.Refused = true
		return &refusal{codeBudget, b.Budget.Sentence(used.Plus(spent), estimate, b.Crashes)}
	}
	if !b.Budget.Admits(used.Plus(children), estimate) {
		return &refusal{codeBudget, b.Budget.Withheld(used, children, estimate)} // its agent does not end by this
	}
	return nil
}

// children is what the children of the agent have of its budget, and what of that is spent.
// Server.mu is not held.
func (in *incarnation) children() (have, spent gate.Amount) {
	s := in.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return in.bounds.Children, in.bounds.Spent
}

// Allot tells an incarnation what the children of its agent have of the budget, and what of
// that is spent. It returns false if it does not run.
func (s *Server) Allot(execID string, children, spent gate.Amount) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil {
		return false
	}
	if in.bounds.Children != children || in.bounds.Spent != spent {
		in.bounds.Children, in.bounds.Spent = children, spent
		in.pulse.changes++
		s.wakeLocked()
	}
	return true
}

// mayCall refuses calls that the op gate refuses, whatever it is asked. So programs that do
// not ask are stopped here. A final call is one for which gate has said yes; without that,
// gate is asked now.
func (in *incarnation) mayCall(c probes.Call, now time.Time) error {
	if no := in.mayAct(c.Kind, c.Name, now); no != nil && gate.HasAct(c.Kind) {
		return no
	}
	switch c.Kind {
	case journal.LLM:
		return in.mayAskModel()
	case journal.Tool:
		if in.beginTool() {
			return nil
		}
		if _, err := in.report(journal.Row{Op: journal.Gate, Kind: c.Kind, Name: c.Name}, now); err != nil {
			return err
		}
		in.beginTool()
	}
	return nil
}

// mayAskModel refuses a call to a model of which nobody knows what it will use.
func (in *incarnation) mayAskModel() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	row := journal.Row{Op: journal.Gate, Kind: journal.LLM}
	if _, no, _ := in.decide(&row); no != nil {
		return no
	}
	return nil
}

// beginTool reports whether the call of a tool may begin, and counts it if it is a final one.
func (in *incarnation) beginTool() (allowed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.context, allowed = in.context.Began(in.bounds.Context)
	return allowed
}

const sentenceDead = "The context of this incarnation is used up: it may do nothing more. It is ended, and the next one goes on."

// fenced refuses a call. It says why, and what to do.
func fenced(c gate.Context, l gate.Limits) *refusal {
	switch fence, left := c.Fence(l); {
	case c.Word(l) == gate.Dead:
		return &refusal{codeFenced, sentenceDead}
	case fence == gate.Stopped:
		return &refusal{codeDraining, "This incarnation is drained, and its step is complete: save the work and exit."}
	case fence == gate.Shut:
		return &refusal{codeFenced, "The final calls of this incarnation are made: end the turn without another one."}
	default:
		return &refusal{codeFenced, fmt.Sprintf("The context is %d %% full, so only %s left. End this turn: the next one is the last, and is for the handoff to your successor. To write it now, ask for a final call: \"final\": true, or agbox-agent gate --final.",
			c.Percent, finals(left))}
	}
}

func finals(n uint32) string {
	if n == 1 {
		return "1 final call of a tool is"
	}
	return fmt.Sprintf("%d final calls of tools are", n)
}

// tellContext adds what the ops turn and context tell of the context.
func (a *accepted) tellContext(op string, sum journal.Summary, l gate.Limits) {
	if op != journal.Turn && op != journal.Context {
		return
	}
	a.Turns, a.Context, a.ContextPct = sum.Turns, sum.Context, sum.Percent
	if op == journal.Turn {
		a.Notice = notice(sum, l)
	}
}

// notice is what the program should know about its context at the end of a turn. It is
// never told in the middle of one: what the model has read must not change there.
func notice(sum journal.Summary, l gate.Limits) string {
	switch sum.Context {
	case gate.Aging:
		return fmt.Sprintf("The context is %d %% full: prepare the handoff to your successor. It begins with an empty context and with what you leave to it.", sum.Percent)
	case gate.Dying:
		return fmt.Sprintf("The context is %d %% full: the next turn is the last, and %s left. Write the handoff to your successor.", sum.Percent, finals(l.FinalCalls))
	case gate.Dead:
		return sentenceDead
	}
	return ""
}

// estimate is what a call to a model will use, as the program says.
type estimate struct {
	InputTokens uint64 `json:"input_tokens"`
	CostUSD     string `json:"cost_usd"`
}

// rowOfContext makes the row of an op of the context.
func rowOfContext(req request) (journal.Row, error) {
	row := journal.Row{Op: req.Op}
	if req.ContextPct == nil {
		if req.Op == journal.Context {
			return row, &refusal{codeBad, "Say with \"context_pct\" how full the context is, in percent."}
		}
	} else if row.Percent = percent(*req.ContextPct); row.Percent > gate.MaxPercent {
		return row, &refusal{codeBad, fmt.Sprintf("\"context_pct\" is how full the context is, from 0 to %d percent.", gate.MaxPercent)}
	}
	if req.Op != journal.Gate {
		return row, nil
	}
	row.Kind, row.Name, row.Final = req.Kind, req.Tool, req.Final
	if row.Kind == "" {
		row.Kind = journal.Tool
	}
	if e := req.Estimate; e != nil {
		cost, err := microUSD(e.CostUSD)
		if err != nil {
			return row, err
		}
		row.Used = &journal.Used{InputTokens: e.InputTokens, CostMicroUSD: cost}
	}
	return row, nil
}

// percent cuts a percentage to a whole number, so that it reaches no threshold too early.
// More than 100 stays more than 100. It returns more than gate.MaxPercent for what is no
// percentage.
func percent(of float64) uint32 {
	switch {
	case of > 100 && of < 101:
		return 101
	case of >= 0 && of <= gate.MaxPercent:
		return uint32(math.Floor(of))
	}
	return gate.MaxPercent + 1
}

// opDrained is the request that only asks whether the incarnation is drained. It has no row.
const opDrained = "drained"

// orders is what each answer tells an incarnation to do.
type orders struct {
	// Drain: save the work, begin no further step and exit.
	Drain bool `json:"drain,omitempty"`
	// DeadlineMs is the time in milliseconds in which the step under way must end. When it is
	// over, abort calls.
	DeadlineMs *int64 `json:"deadline_ms,omitempty"`
	// Paused: the agent is paused, and calls are refused until it goes on.
	Paused bool `json:"paused,omitempty"`
	// Checkpoint: the incarnation was UNHEALTHY, and has saved no checkpoint since. Save one.
	Checkpoint bool `json:"checkpoint,omitempty"`
}

// Running reports whether the exec is a running incarnation.
func (s *Server) Running(execID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.byExec[execID]
	return ok
}

// Drain begins to tell an incarnation that it is drained. plan gets the newest state that it
// has reported, and returns when it is to abort its calls. It returns false for one that has
// ended, or was told before. write appends a row about it to the journal, which may have to
// wait for the disk, and has the calls of the incarnation aborted in time.
func (s *Server) Drain(execID string, plan func(lifecycle string) (abort time.Time)) (begun bool, write func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[s.byExec[execID]]
	if in == nil || !in.abort.IsZero() {
		return false, nil
	}
	abort := plan(in.pulse.lifecycle)
	in.abort = abort
	close(in.draining)
	return true, func() {
		in.calls.drain(in, abort, time.Now())
		_, _ = in.report(journal.Row{Op: journal.Drain}, time.Now()) // without a row it is drained all the same
	}
}

// orders returns what an incarnation has to be told now.
func (s *Server) orders(in *incarnation, now time.Time) orders {
	s.mu.Lock()
	defer s.mu.Unlock()
	also := orders{Paused: in.pausedLocked(), Checkpoint: in.pulse.save}
	if in.abort.IsZero() {
		return also
	}
	left := max(0, in.abort.Sub(now).Milliseconds())
	also.Drain, also.DeadlineMs = true, &left
	return also
}
