package incarnations

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// childOf describes an agent to its parent.
func childOf(a ledger.Agent) gate.Child {
	c := gate.Child{AgentID: a.ID, Name: a.Name, Title: cut(a.Spec.GetTitle()), State: a.Word(), Over: a.Over()}
	if c.Message = cut(a.Done.GetMessage()); a.Pause != nil {
		c.Message = cut(a.Pause.Message)
	}
	return c
}

// maxEnded bounds the children in an answer that have ended. An answer with more would fit into
// no message.
const maxEnded = 512

// childrenOf returns the children of an agent, oldest first, but of those that have ended only
// the newest.
func (r *Runner) childrenOf(a ledger.Agent) []ledger.Agent {
	return withNewestEnded(r.ledger.Children(a.ID), maxEnded)
}

// withNewestEnded leaves out the oldest agents that have ended until at most that many are left.
func withNewestEnded(list []ledger.Agent, most int) []ledger.Agent {
	out := -most
	for _, c := range list {
		if c.Over() {
			out++
		}
	}
	return slices.DeleteFunc(list, func(c ledger.Agent) bool {
		if !c.Over() || out <= 0 {
			return false
		}
		out--
		return true
	})
}

// children answers which agents the agent has spawned.
func (r *Runner) children(_ context.Context, a ledger.Agent, _ request) (any, bool, error) {
	list := []gate.Child{}
	for _, c := range r.childrenOf(a) {
		list = append(list, childOf(c))
	}
	return gate.Children{Children: list}, false, nil
}

// maxNamed bounds the agents that a request names. Each is looked for in the whole tree, and
// the request of "wait" again in each round.
const maxNamed = 256

type waitFields struct {
	Agents []string `json:"agents"`
	Any    bool     `json:"any"`
}

// wait answers when descendants of the agent have ended: all that are named or, without
// names, all its children; with any, one of them.
func (r *Runner) wait(_ context.Context, a ledger.Agent, _ request, f waitFields) (any, bool, error) {
	if len(f.Agents) > maxNamed {
		return nil, false, invalid("A request may name %d agents, and this one names %d: ask for some after the others.", maxNamed, len(f.Agents))
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
	over, list := 0, []gate.Child{}
	for _, c := range waited {
		if c.Over() {
			over++
		}
		list = append(list, childOf(c))
	}
	if over < len(waited) && (!f.Any || over == 0) {
		return nil, true, nil
	}
	return gate.Children{Children: list}, false, nil
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

type killFields struct {
	Agent string `json:"agent"`
	// Mode is the name of a KillMode in lower case; terminate if empty.
	Mode string `json:"mode"`
}

// kill ends a descendant of the agent. The answer does not wait for the end.
func (r *Runner) kill(ctx context.Context, a ledger.Agent, q request, f killFields) (any, bool, error) {
	mode, known := agboxv1.KillMode_value["KILL_MODE_"+strings.ToUpper(cmp.Or(f.Mode, "terminate"))]
	if !known || mode == 0 {
		return nil, false, invalid("There is no mode %.32q: leave it out, or give graceful or now.", f.Mode)
	}
	if err := mayAct(a, q.op); err != nil {
		return nil, false, err
	}
	target, err := r.descendant(a, f.Agent)
	if err != nil {
		return nil, false, err
	}
	target, err = r.ledger.RequestKill(ctx, target.ID, &agboxv1.AgentKill{Mode: agboxv1.KillMode(mode), By: "agent " + cmp.Or(a.Name, a.ID)})
	if err != nil {
		return nil, false, err
	}
	r.enqueue(target.ID)
	return childOf(target), false, nil
}

func (r *Runner) childrenBudget(a ledger.Agent) childrenBudget {
	return childrenBudget{have: r.ledger.ChildrenBudget(a), spent: r.ledger.SpentByChildren(a)}
}

// TellChildren tells the incarnation of the agent what the children of the agent have of its
// budget, so that they and the agent together do not use more than that. A supervisor that is
// too old is not told.
func (r *Runner) TellChildren(ctx context.Context, a ledger.Agent) error {
	execID, budget := a.Incarnation.ExecID, r.childrenBudget(a)
	before := r.desk.of(execID)
	if budget == before.childrenBudget() {
		return nil
	}
	err := r.execs.Allot(ctx, a.Incarnation.SandboxID, &guestv1.AllotRequest{
		ExecId: execID, ChildrenInputTokens: budget.have.InputTokens, ChildrenCostMicroUsd: budget.have.CostMicroUSD,
		SpentInputTokens: budget.spent.InputTokens, SpentCostMicroUsd: budget.spent.CostMicroUSD,
	})
	if err != nil && !errdefs.IsNotImplemented(err) && fault.ReasonOf(err) != agboxv1.ErrorReason_EXEC_ALREADY_TERMINAL {
		return err
	}
	r.desk.mu.Lock()
	defer r.desk.mu.Unlock()
	if k := r.desk.known[execID]; k.link == before.link {
		k.children = &budget
		r.desk.known[execID] = k
	}
	return nil
}

// childrenBudget is what the incarnation knows of the budget of children.
func (k known) childrenBudget() childrenBudget {
	if k.children != nil {
		return *k.children // its news may be from before
	}
	return childrenBudget{
		have:  gate.Amount{InputTokens: k.news.GetChildrenInputTokens(), CostMicroUSD: k.news.GetChildrenCostMicroUsd()},
		spent: gate.Amount{InputTokens: k.news.GetSpentInputTokens(), CostMicroUSD: k.news.GetSpentCostMicroUsd()},
	}
}
