package journal

import "github.com/agbox/agbox/agents/gate"

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

// Bounded is the part of a usage that a budget bounds.
func (u Used) Bounded() gate.Amount {
	return gate.Amount{InputTokens: u.InputTokens, CostMicroUSD: u.CostMicroUSD}
}
