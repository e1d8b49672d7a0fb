package agents

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Kin is what is known about the agents that an agent depends on. The zero value is an agent
// whose parent lives, and that waits for no other agent.
type Kin struct {
	// ParentOver means that the parent has ended or does not exist any more. Heir is then the
	// id of the nearest ancestor that has not ended, at last Init.
	ParentOver bool
	Heir       string
	// ParentKill is the wish to end the parent, if it has not ended otherwise, or nil.
	ParentKill *agboxv1.AgentKill
	// Awaited are the ids of the agents that it is to follow and that have not completed. Failed
	// describes one among them that never will; it is empty if there is none.
	Awaited []string
	Failed  string
}

// KinOf returns what an agent must know of its parent. heir is its nearest ancestor that has
// not ended.
func KinOf(parent Record, heir string) Kin {
	k := Kin{ParentOver: parent.Over() || !parent.Exists(), Heir: heir}
	if parent.State == Aborted || !k.ParentOver {
		k.ParentKill = parent.Kill
	}
	return k
}

// Await adds an agent that must be COMPLETED before. The record is empty if it was removed.
func (k *Kin) Await(id string, r Record) {
	if r.State == Completed {
		return
	}
	k.Awaited = append(k.Awaited, id)
	switch {
	case !r.Exists():
		k.Failed = "agent " + id + ", which was removed"
	case r.Over():
		k.Failed = "agent " + cmp.Or(r.Name, id) + ", which is " + r.Word()
	}
}

// nextOfKin returns the event that follows for an agent from the end of its parent: it ends
// too, or the nearest living ancestor adopts it.
func nextOfKin(r Record, kin Kin) (ev *agboxv1.AgentEvent, why string) {
	switch {
	case r.Kill == nil && stopsWith(r, kin):
		return &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED,
			Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{
				Mode: kin.ParentKill.GetMode(), By: "the kill of its parent", Cascade: kin.ParentKill.GetCascade(),
			}},
		}, "its parent was killed"
	case r.Kill == nil && kin.killed() && r.HeldBy(AgentHolder(r.Parent)):
		return Closed(AgentHolder(r.Parent), "it was killed"), "its parent was killed, and others hold it"
	case kin.ParentOver:
		return &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_REPARENTED,
			Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{
				Parent: kin.Heir, From: r.Parent,
			}},
		}, "its parent has ended"
	}
	return nil, ""
}

// stopsWith reports whether an agent is to end because its parent was killed. Whoever loses
// its parent otherwise is adopted.
func stopsWith(r Record, kin Kin) bool {
	switch kin.ParentKill.GetCascade() {
	case agboxv1.KillCascade_KILL_CASCADE_TREE:
		return true
	case agboxv1.KillCascade_KILL_CASCADE_NONE:
		return false
	}
	return kin.killed() && r.HeldOnlyBy(r.Parent)
}

// killed reports whether the parent was killed and so holds nobody any more. That of a parent
// that has ended otherwise leaves its holds to the heir.
func (k Kin) killed() bool {
	return k.ParentOver && k.ParentKill.GetCascade() == agboxv1.KillCascade_KILL_CASCADE_UNSPECIFIED && k.ParentKill != nil
}

const (
	defaultChildren = 16
	// defaultSandboxes bounds the sandboxes of a tree. Each may use as much memory as that of the
	// parent, so there are few.
	defaultSandboxes = 8
)

// SpawnRules are what an agent may spawn from inside its sandbox.
type SpawnRules struct {
	Classes []string
	// Children is the number of its children that have not ended.
	Children int
	// Depth is that of the tree of its descendants, from 1.
	Depth uint32
	// Sandboxes is the number of sandboxes that were made for agents of its tree that were
	// spawned from inside.
	Sandboxes int
}

// SpawnRulesOf returns the rules with their defaults. It returns false if the agent may spawn
// nothing.
func SpawnRulesOf(spec *agboxv1.AgentSpec) (SpawnRules, bool) {
	s := spec.GetMaySpawn()
	if s == nil {
		return SpawnRules{}, false
	}
	rules := SpawnRules{Classes: s.GetClasses(), Children: int(cmp.Or(s.GetChildren(), defaultChildren)), Depth: cmp.Or(s.GetDepth(), 1), Sandboxes: defaultSandboxes}
	if s.Sandboxes != nil {
		rules.Sandboxes = int(s.GetSandboxes())
	}
	return rules, true
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
	return &agboxv1.AgentMaySpawn{Classes: r.Classes, Children: uint32(r.Children), Depth: r.Depth - 1, Sandboxes: proto.Uint32(uint32(r.Sandboxes))}
}

// Taken is what a child takes of the budget of its parent: its own budget until it has ended,
// and then what it and those below it have used. below is what its children take.
func Taken(child Record, budget Budget, below gate.Amount) gate.Amount {
	used := amount(child.Consumed()).Plus(child.UsedByFormer()).Plus(below)
	if child.Over() {
		return used
	}
	return gate.Amount{InputTokens: max(used.InputTokens, budget.InputTokens), CostMicroUSD: max(used.CostMicroUSD, budget.CostMicroUSD)}
}

// UsedByFormer is what children that were removed have used of the budget of an agent.
func (r Record) UsedByFormer() gate.Amount { return amount(r.FormerChildren.GetUsed()) }

// Left is what an agent may still give to children, of which the present ones take an amount. A
// bound of 0 stays, which means that there is none.
func Left(parent Record, budget Budget, taken gate.Amount) Budget {
	taken = taken.Plus(amount(parent.Consumed())).Plus(parent.UsedByFormer())
	return Budget{
		InputTokens:  budget.InputTokens - min(budget.InputTokens, taken.InputTokens),
		CostMicroUSD: budget.CostMicroUSD - min(budget.CostMicroUSD, taken.CostMicroUSD),
	}
}

// ChildBudget decides about the budget that an agent wants for a child, of what it has left.
// Without a wish it is one of that many equal shares, but no more than the default. problem says
// why there is none.
func ChildBudget(parent, left Budget, shares int, wanted *agboxv1.AgentBudget) (budget *agboxv1.AgentBudget, problem string) {
	child, share := budgetOf(wanted), func(n uint64) uint64 { return min(n, max(1, n/uint64(shares))) }
	if parent.InputTokens > 0 {
		if wanted == nil || wanted.InputTokens == nil {
			child.InputTokens = min(child.InputTokens, share(left.InputTokens))
		}
		if child.InputTokens == 0 || child.InputTokens > left.InputTokens {
			return nil, fmt.Sprintf("%d input tokens are left: ask for at most so many and not for 0, which is no bound, or wait until a child has ended.", left.InputTokens)
		}
	}
	if parent.CostMicroUSD > 0 {
		if wanted.GetCostUsd() == "" {
			child.CostMicroUSD = min(child.CostMicroUSD, share(left.CostMicroUSD))
		}
		if child.CostMicroUSD == 0 || child.CostMicroUSD > left.CostMicroUSD {
			return nil, fmt.Sprintf("%s USD are left: ask for at most so much and not for 0, which is no bound, or wait until a child has ended.", dollars(left.CostMicroUSD))
		}
	}
	return &agboxv1.AgentBudget{InputTokens: &child.InputTokens, CostUsd: dollars(child.CostMicroUSD)}, ""
}
