package agents

import (
	"context"

	"github.com/agbox/agbox/daemon/ledger"
)

// child is an agent as its parent sees it.
type child struct {
	AgentID string `json:"agent_id"`
	Name    string `json:"name,omitempty"`
	Title   string `json:"title,omitempty"`
	// State is the word for it, as "agbox agent ls" shows it. Over means that it has ended.
	State   string `json:"state"`
	Over    bool   `json:"over"`
	Message string `json:"message,omitempty"`
}

// childOf describes an agent to its parent.
func childOf(a ledger.Agent) child {
	c := child{AgentID: a.ID, Name: a.Name, Title: cut(a.Spec.GetTitle()), State: a.Word(), Over: a.Over()}
	if c.Message = cut(a.Done.GetMessage()); a.Pause != nil {
		c.Message = cut(a.Pause.Message)
	}
	return c
}

// maxText bounds the texts about a child, in bytes.
const maxText = 1 << 10

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return text[:maxText] + "..."
}

// children answers which agents the agent has spawned, oldest first.
func (r *Runner) children(_ context.Context, a ledger.Agent, _ request) (any, bool, error) {
	list := []child{}
	for _, c := range r.ledger.Children(a.ID) {
		list = append(list, childOf(c))
	}
	return map[string]any{"children": list}, false, nil
}
