package agents

import (
	"cmp"
	"slices"
	"strings"
)

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
