package journal

import "slices"

// Totals are what the beats of a program say about its work. Each total is that of the
// incarnation since its start.
type Totals struct {
	// Step is the step that the program is in, as it counts them itself. InStep is false if it
	// is in none.
	Step   uint64 `json:"step,omitempty"`
	InStep bool   `json:"in_step,omitempty"`
	// Steps is the number of completed steps.
	Steps     uint64 `json:"steps,omitempty"`
	LLMCalls  uint64 `json:"llm_calls,omitempty"`
	ToolCalls uint64 `json:"tool_calls,omitempty"`
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

// Then returns the totals after those of a newer beat.
func (t Totals) Then(newer Totals) Totals {
	newer.Steps, newer.LLMCalls, newer.ToolCalls = max(t.Steps, newer.Steps), max(t.LLMCalls, newer.LLMCalls), max(t.ToolCalls, newer.ToolCalls)
	return newer
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
