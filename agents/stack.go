package agents

import (
	"cmp"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// StackRules are the bounds of a stack. 0 means none.
type StackRules struct {
	Name                     string
	Agents                   int
	InboxBytes, JournalBytes uint64
	CostMicroUSD             uint64
}

// sandboxBorder begins what stands for the border of a sandbox among StackRoots. No id has a colon.
const sandboxBorder = "sandbox:"

// AllReached is the scope of the agents that are within no border.
const AllReached = "all"

// Everywhere stands first among StackRoots of agents that are within the border of no sandbox.
const Everywhere = "reach:" + AllReached

// SandboxBorder is what stands for the border of a sandbox among StackRoots.
func SandboxBorder(sandboxID string) string { return sandboxBorder + sandboxID }

// World is the border of the sandbox that the agent is within, which may have spawned others. It
// is empty for agents that were spawned to reach all others of that kind.
func (r Record) World() string {
	if len(r.StackRoots) > 0 && strings.HasPrefix(r.StackRoots[0], sandboxBorder) {
		return r.StackRoots[0]
	}
	return ""
}

// Scope says to clients within which border the names of streams and resources mean the same:
// that of a sandbox, that of a stack by the id of its root, or none.
func (r Record) Scope() string {
	switch root := r.StackRoot(); {
	case root == "" || root == Everywhere:
		return AllReached
	case root == r.World():
		return root
	default:
		return "stack:" + root
	}
}

// OfUser reports whether a user has spawned the agent, and no other agent.
func (r Record) OfUser() bool { return r.Depth == 1 }

// SentFrom is the border whose agents share a part of each inbox.
func (r Record) SentFrom() string { return cmp.Or(r.World(), SandboxBorder(r.SandboxID)) }

// StackRoot is what stands for the innermost border that the agent is within: the id of the root
// of a stack, SandboxBorder, or Everywhere. It is empty for Init.
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

// Reaches reports whether an agent may send to another one: within the same innermost border, and
// besides to its parent, which is the nearest that has not ended, and its children. Init is
// reached from everywhere outside of stacks.
func (r Record) Reaches(to Record, parent string) bool {
	return r.StackRoot() == to.StackRoot() || to.ID == parent || to.Parent == r.ID || to.ID == Init && r.Stack == ""
}

// bordered gives an agent from before sandboxes were borders that of its sandbox.
func (r Record) bordered() Record {
	if r.ID == Init || len(r.StackRoots) > 0 && (r.StackRoots[0] == Everywhere || strings.HasPrefix(r.StackRoots[0], sandboxBorder)) {
		return r
	}
	r.StackRoots, r.Borderless = slices.Concat([]string{SandboxBorder(r.SandboxID)}, r.StackRoots), true
	return r
}

// GiveBorders gives agents from before sandboxes were borders the one that they would get now:
// that of their parent, else that of the agent for which their sandbox was made, else that of
// their sandbox. The records are all that are known, deleted ones too, in any order.
func GiveBorders(records []*Record) {
	b := borders{known: make(map[string]*Record, len(records)), owners: make(map[string]*Record)}
	for _, r := range records {
		b.known[r.ID] = r
		if r.Owned {
			b.owners[SandboxBorder(r.SandboxID)] = r
			for _, stay := range r.Moves {
				b.owners[SandboxBorder(stay.SandboxID)] = r
			}
		}
	}
	for _, r := range records {
		b.give(r)
	}
}

// borders finds the borders of agents.
type borders struct {
	// known has the agents by id, and owners those for which a sandbox was made, by SandboxBorder.
	known, owners map[string]*Record
}

// give returns the border of an agent, which gets it first if it has none.
func (b borders) give(r *Record) string {
	if r.ID == Init {
		return ""
	}
	if !r.Borderless {
		return r.StackRoots[0]
	}
	r.Borderless = false // so that records that lead in a circle, from damaged files, come to an end
	border := r.StackRoots[0]
	if parent := cmp.Or(b.known[r.Origin], b.known[r.Parent]); parent != nil && parent.ID != Init {
		border = b.give(parent)
	} else if owner := b.owners[border]; owner != nil && b.give(owner) != Everywhere {
		border = b.give(owner)
	}
	r.StackRoots = slices.Concat([]string{border}, r.StackRoots[1:])
	return border
}
