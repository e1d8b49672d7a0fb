package agent

import (
	"google.golang.org/protobuf/proto"

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

// BorderOf says what the border of the stack does of which the agent is the root. It is
// unspecified for all others.
func (r Record) BorderOf() agboxv1.StackBorder {
	switch {
	case r.StackRoot() != r.ID || r.ID == "":
		return agboxv1.StackBorder_STACK_BORDER_UNSPECIFIED
	case r.Owned:
		return agboxv1.StackBorder_STACK_BORDER_PROTECTS
	}
	return agboxv1.StackBorder_STACK_BORDER_ORDERS
}

// Reaches reports whether an agent may send to another one: in its own stack, and besides
// its parent, which is the nearest that has not ended, and its children.
func (r Record) Reaches(to Record, parent string) bool {
	return r.StackRoot() == to.StackRoot() || to.ID == parent || to.Parent == r.ID
}

// WithinStack returns the spec with a budget that is no larger than what the stack of which the
// agent is the root may cost. All others in the stack have parts of that budget.
func WithinStack(spec *agboxv1.AgentSpec) *agboxv1.AgentSpec {
	most, budget := StackOf(spec).CostMicroUSD, budgetOf(spec.GetBudget())
	if most == 0 || budget.CostMicroUSD > 0 && budget.CostMicroUSD <= most {
		return spec
	}
	spec = proto.CloneOf(spec)
	spec.Budget = &agboxv1.AgentBudget{InputTokens: &budget.InputTokens, CostUsd: dollars(most)}
	return spec
}
