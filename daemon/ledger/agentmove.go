package ledger

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/ids"
)

// MoveAgent makes a new sandbox for an agent whose own one is lost, from the same spec, and
// requests the removal of the old one: all in one transaction. The new sandbox has no name,
// because the old one keeps it until it is removed. It does nothing to an agent that has
// changed since it was seen.
func (l *Ledger) MoveAgent(ctx context.Context, seen Agent) (Agent, error) {
	old, exists := l.Sandbox(seen.SandboxID)
	if !exists {
		return seen, nil // its round says what follows
	}
	old, err := l.Reveal(ctx, old)
	if err != nil {
		return seen, err
	}
	// Own sandboxes of agents are named "agent-...", so this is no other agent's.
	id := fmt.Sprintf("remade-%d-%s", seen.Incarnations+1, seen.ID)
	spec, nonce := proto.CloneOf(old.Spec), ids.New()
	spec.Name = ""
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return seen, err
	}
	moved := &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: id}},
	}
	return l.updateAgent(ctx, seen.ID, func(t *agentTxn) error {
		if t.a.SandboxID != seen.SandboxID || !t.a.Owned || !t.a.Settled || !agent.Legal(t.a.Record, moved) {
			return errNothing
		}
		if _, err := l.within(t.tx, id, func(s *txn) error { return s.create(id, nonce, spec, shown, RequestKey{}) }); err != nil {
			return err
		}
		if err := l.wantDeleted(t.tx, old.ID); err != nil {
			return err
		}
		return t.append(seen.ID, moved)
	})
}
