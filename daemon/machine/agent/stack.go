package agent

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// StackRules are the bounds of a stack. 0 means none.
type StackRules struct {
	Name                     string
	Agents                   int
	InboxBytes, JournalBytes uint64
	CostMicroUSD             uint64
}

// StackOf returns the stack of which an agent is the root. Without a name there is none.
func StackOf(spec *agboxv1.AgentSpec) StackRules {
	s := spec.GetStack()
	rules := StackRules{Name: s.GetName(), Agents: int(s.GetAgents()), InboxBytes: s.GetInboxBytes(), JournalBytes: s.GetJournalBytes()}
	if s.GetCostUsd() != "" {
		rules.CostMicroUSD = microUSD(s.GetCostUsd())
	}
	return rules
}

// StackRoot is the id of the root of the innermost stack that the agent is in, or empty.
func (r Record) StackRoot() string {
	if len(r.StackRoots) == 0 {
		return ""
	}
	return r.StackRoots[len(r.StackRoots)-1]
}

// Reaches reports whether an agent may send to another one: in its own stack, and besides
// its parent, which is the nearest that has not ended, and its children.
func (r Record) Reaches(to Record, parent string) bool {
	return r.StackRoot() == to.StackRoot() || to.ID == parent || to.Parent == r.ID
}

// CapCost bounds the budget of a new agent by what its stack may still cost. wanted is the
// budget that was asked for. problem says why there is none.
func CapCost(budget *agboxv1.AgentBudget, left uint64, wanted *agboxv1.AgentBudget) (_ *agboxv1.AgentBudget, problem string) {
	switch cost := microUSD(budget.GetCostUsd()); {
	case left == 0, wanted.GetCostUsd() != "" && (cost == 0 || cost > left):
		return nil, fmt.Sprintf("%s USD of what its stack may cost are left: ask for at most so much.", dollars(left))
	case cost == 0 || cost > left:
		budget.CostUsd = dollars(left)
	}
	return budget, ""
}
