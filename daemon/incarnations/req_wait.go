package incarnations

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// maxNamed bounds the agents that a request names. Each is looked for in the whole tree, and
// the request of "wait" again in each round.
const maxNamed = 256

// wait answers when descendants of the agent have ended: all that are named or, without
// names, all its children; with any, one of them.
func (r *Runner) wait(_ context.Context, a ledger.Agent, q request) (any, bool, error) {
	var f struct {
		Agents []string `json:"agents"`
		Any    bool     `json:"any"`
	}
	if err := q.decode(&f); err != nil {
		return nil, false, err
	}
	if len(f.Agents) > maxNamed {
		return nil, false, q.invalid("A request may name %d agents, and this one names %d: ask for some after the others.", maxNamed, len(f.Agents))
	}
	waited := r.childrenOf(a)
	if len(f.Agents) > 0 {
		waited = nil
		for _, ref := range f.Agents {
			d, err := r.descendant(a, ref)
			if err != nil {
				return nil, false, err
			}
			waited = append(waited, d)
		}
	}
	over, list := 0, []child{}
	for _, c := range waited {
		if c.Over() {
			over++
		}
		list = append(list, childOf(c))
	}
	if over < len(waited) && (!f.Any || over == 0) {
		return nil, true, nil
	}
	return map[string]any{"children": list}, false, nil
}

// descendant finds an agent below another one by its id or name. Of another stack it finds only
// the root. Of several with a name, the
// one that has not ended is meant, else the newest.
func (r *Runner) descendant(a ledger.Agent, ref string) (ledger.Agent, error) {
	var named []ledger.Agent
	seen := map[string]bool{a.ID: true} // a tree has no circles, but its records come from a file
	for below := r.ledger.Children(a.ID); len(below) > 0; {
		c := below[0]
		below = below[1:]
		switch {
		case seen[c.ID]:
			continue
		case c.ID == ref:
			return c, nil
		case c.Name != "" && c.Name == ref:
			named = append(named, c)
		}
		seen[c.ID] = true
		if c.StackRoot() == a.StackRoot() {
			below = append(below, r.ledger.Children(c.ID)...)
		}
	}
	if i := slices.IndexFunc(named, func(c ledger.Agent) bool { return !c.Over() }); i >= 0 {
		return named[i], nil
	}
	if len(named) > 0 {
		return named[len(named)-1], nil
	}
	return ledger.Agent{}, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
		"Agent %s has no child, and no child has one, with the id or name %.64q: \"agbox-agent children\" lists the children.", a.ID, ref).With("agent_id", a.ID)
}
