package incarnations

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// toldChildren is what an incarnation was told of the budget of children, over which link.
type toldChildren struct {
	link *links.Link
	childrenBudget
}

// childrenBudget is what the children of an agent have of its budget, and the part of that
// which is spent.
type childrenBudget struct{ have, spent gate.Amount }

func (r *Runner) childrenBudget(a ledger.Agent) childrenBudget {
	return childrenBudget{have: r.ledger.ChildrenBudget(a), spent: r.ledger.SpentByChildren(a)}
}

// TellChildren tells the incarnation of the agent what the children of the agent have of its
// budget, so that they and the agent together do not use more than that. A supervisor that is
// too old is not told.
func (r *Runner) TellChildren(ctx context.Context, a ledger.Agent) error {
	execID, budget := a.Incarnation.ExecID, r.childrenBudget(a)
	r.desk.mu.Lock()
	link := r.desk.heard[execID].link
	known := budget == r.desk.toldChildrenLocked(execID)
	r.desk.mu.Unlock()
	if known {
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
	r.desk.children[execID] = toldChildren{link, budget}
	return nil
}

// toldChildrenLocked is what an incarnation knows of the budget of children.
func (d *desk) toldChildrenLocked(execID string) childrenBudget {
	h := d.heard[execID]
	if told, is := d.children[execID]; is && told.link == h.link {
		return told.childrenBudget // its news may be from before
	}
	return childrenBudget{
		have:  gate.Amount{InputTokens: h.news.GetChildrenInputTokens(), CostMicroUSD: h.news.GetChildrenCostMicroUsd()},
		spent: gate.Amount{InputTokens: h.news.GetSpentInputTokens(), CostMicroUSD: h.news.GetSpentCostMicroUsd()},
	}
}
