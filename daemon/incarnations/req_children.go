package incarnations

import (
	"context"
	"slices"
	"strings"

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
	return strings.ToValidUTF8(text[:maxText], "") + "..."
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
	list := []child{}
	for _, c := range r.childrenOf(a) {
		list = append(list, childOf(c))
	}
	return map[string]any{"children": list}, false, nil
}
