package ledger

import (
	"slices"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// stackOf returns the innermost stack of a new agent and the roots of all that it is in,
// outermost first.
func (t *agentTxn) stackOf(n NewAgent) (name string, roots []string) {
	parent := t.l.agentIn(t.tx, n.Parent)
	name, roots = parent.Stack, slices.Clone(parent.StackRoots)
	if own := agent.StackOf(n.Spec).Name; own != "" {
		name, roots = own, append(roots, n.ID)
	}
	return name, roots
}

// mayJoinStacks refuses an agent for which one of the stacks of its parent has no room.
func (t *agentTxn) mayJoinStacks(n NewAgent) error {
	for _, root := range t.l.agentIn(t.tx, n.Parent).StackRoots {
		rules := agent.StackOf(t.l.agentIn(t.tx, root).Spec)
		if rules.Agents == 0 {
			continue
		}
		living := 0
		spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
		for _, a := range append(t.l.agents.among(t.l.agents.index.livingUnder, root), spawned...) {
			if a = t.l.agentIn(t.tx, a.ID); !a.Over() && slices.Contains(a.StackRoots, root) {
				living++
			}
		}
		if living >= rules.Agents {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
				"Stack %s has %d agents that have not ended, which is its limit: wait for one, or end one.", rules.Name, living).With("agent_id", root)
		}
	}
	return nil
}

// mayReach refuses a message of an agent that would cross the border of a stack.
func (l *Ledger) mayReach(tx *store.Tx, sender Agent, to string) error {
	recipient := l.agentIn(tx, to)
	if !recipient.Exists() && to != agent.Init {
		return nil // that is said by deliver
	}
	if to == agent.Init {
		recipient.ID = agent.Init
	}
	if sender.Reaches(recipient.Record, l.livingParent(tx, sender)) {
		return nil
	}
	return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_STACK_BORDER,
		"Agent %s is beyond the border of a stack, which only the root of the stack and its parent reach across: send it to \"parent\".", to).With("agent_id", to)
}

// hasInboxRoom refuses a message if the inboxes of a stack that its recipient is in have no
// room for it.
func (l *Ledger) hasInboxRoom(tx *store.Tx, to Agent, m *agboxv1.AgentMessage) error {
	if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_TEXT {
		return nil
	}
	for _, root := range to.StackRoots {
		rules := agent.StackOf(l.agentIn(tx, root).Spec)
		if rules.InboxBytes == 0 {
			continue
		}
		if used := l.stackBytesIn(tx, root) + messageSize(m); uint64(used) > rules.InboxBytes {
			return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_INBOX_FULL,
				"The agents of stack %s may have %d bytes of messages that they have not read, and there is no room for this one: try again when they have read some.",
				rules.Name, rules.InboxBytes).With("agent_id", to.ID)
		}
	}
	return nil
}

// InStack reports whether the agent is in a stack with that name.
func (l *Ledger) InStack(a Agent, name string) bool {
	return slices.ContainsFunc(a.StackRoots, func(root string) bool {
		r, _ := l.Agent(root)
		return agent.StackOf(r.Spec).Name == name
	})
}
