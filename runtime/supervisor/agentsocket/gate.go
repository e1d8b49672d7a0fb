package agentsocket

import (
	"fmt"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
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
