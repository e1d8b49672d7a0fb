package agent

import (
	"fmt"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const defaultChildren = 16

// SpawnRules are what an agent may spawn from inside its sandbox.
type SpawnRules struct {
	Classes []string
	// Children is the number of its children that have not ended.
	Children int
	// Depth is that of the tree of its descendants, from 1.
	Depth uint32
}

// SpawnRulesOf returns the rules with their defaults. It returns false if the agent may spawn
// nothing.
func SpawnRulesOf(spec *agboxv1.AgentSpec) (SpawnRules, bool) {
	s := spec.GetMaySpawn()
	if s == nil {
		return SpawnRules{}, false
	}
	return SpawnRules{Classes: s.GetClasses(), Children: int(or(s.GetChildren(), defaultChildren)), Depth: or(s.GetDepth(), 1)}, true
}

// Allows reports whether a child may have that class.
func (r SpawnRules) Allows(class string) bool {
	if len(r.Classes) == 0 {
		return class == ""
	}
	return slices.Contains(r.Classes, class)
}

// OfChild is what a child may spawn, or nil.
func (r SpawnRules) OfChild() *agboxv1.AgentMaySpawn {
	if r.Depth <= 1 {
		return nil
	}
	return &agboxv1.AgentMaySpawn{Classes: r.Classes, Children: uint32(r.Children), Depth: r.Depth - 1}
}

// Left is what an agent may give to a further child: its budget without what it and its
// children have used. A bound of 0 stays, which means that there is none.
func Left(parent Budget, used ...*agboxv1.AgentUsage) Budget {
	for _, u := range used {
		parent.InputTokens -= min(parent.InputTokens, u.GetInputTokens())
		parent.CostMicroUSD -= min(parent.CostMicroUSD, u.GetCostMicroUsd())
	}
	return parent
}

// ChildBudget decides about the budget that an agent wants for a child; nil means the default,
// or less if less is left. used is what the agent and its children have used. problem says why
// there is none.
func ChildBudget(parent Budget, used []*agboxv1.AgentUsage, wanted *agboxv1.AgentBudget) (budget *agboxv1.AgentBudget, problem string) {
	left, child := Left(parent, used...), budgetOf(wanted)
	if parent.InputTokens > 0 {
		if wanted == nil || wanted.InputTokens == nil {
			child.InputTokens = min(child.InputTokens, left.InputTokens)
		}
		if child.InputTokens == 0 || child.InputTokens > left.InputTokens {
			return nil, fmt.Sprintf("%d input tokens of its budget are left: ask for at most so many.", left.InputTokens)
		}
	}
	if parent.CostMicroUSD > 0 {
		if wanted.GetCostUsd() == "" {
			child.CostMicroUSD = min(child.CostMicroUSD, left.CostMicroUSD)
		}
		if child.CostMicroUSD == 0 || child.CostMicroUSD > left.CostMicroUSD {
			return nil, fmt.Sprintf("%s USD of its budget are left: ask for at most so much.", dollars(left.CostMicroUSD))
		}
	}
	return &agboxv1.AgentBudget{InputTokens: &child.InputTokens, CostUsd: dollars(child.CostMicroUSD)}, ""
}

// dollars writes an amount as specs have it.
func dollars(micro uint64) string { return fmt.Sprintf("%d.%06d", micro/1e6, micro%1e6) }
