package ledger

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/store"
)

// MoveAgent makes a new sandbox for an agent whose own one is lost, from the same spec, and
// requests the removal of the old one: all in one transaction. The new sandbox gets the name of
// the old one at once, and the other agents of that, its children for example, move too. It does
// nothing to an agent that has changed since it was seen, and nothing while another agent there
// has an incarnation whose end is not decided about.
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
	shown, err := l.hide(ctx, id, spec)
	if err != nil {
		return seen, err
	}
	moved := &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: id}},
	}
	return l.updateAgent(ctx, seen.ID, func(t *agentTxn) error {
		if t.a.SandboxID != seen.SandboxID || !t.a.Owned || !t.a.Settled || !agents.Legal(t.a.Record, moved) || l.busyIn(t.tx, old.ID) {
			return errNothing
		}
		if t.tx.Value(nameOverlay{old.Name}) == nil { // nobody can have taken the name of a sandbox that exists
			t.tx.SetValue(nameOverlay{old.Name}, "")
		}
		if _, err := l.within(t.tx, id, func(s *txn) error { return s.create(id, nonce, spec, shown, RequestKey{}) }); err != nil {
			return err
		}
		if err := l.wantDeleted(t.tx, old.ID); err != nil {
			return err
		}
		if err := l.moveOthers(t.tx, old.ID, seen.ID, moved); err != nil {
			return err
		}
		return t.append(seen.ID, moved)
	})
}

// moveOthers moves the agents of a sandbox that have not ended, but for the one that owns it. One
// that is to end needs no sandbox.
func (l *Ledger) moveOthers(tx *store.Tx, sandboxID, owner string, moved *agboxv1.AgentEvent) error {
	for _, a := range l.agentsIn(tx, sandboxID) {
		if a.ID == owner || !agents.Legal(a.Record, moved) {
			continue
		}
		if _, err := l.withinAgent(tx, a.ID, func(t *agentTxn) error { return t.append(a.ID, moved) }); err != nil {
			return err
		}
		l.stir(tx, a.ID)
	}
	return nil
}

// agentsIn is AgentsIn at this point of the write order.
func (l *Ledger) agentsIn(tx *store.Tx, sandboxID string) (list []Agent) {
	spawned, _ := tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range append(l.AgentsIn(sandboxID), spawned...) {
		if a = l.agentIn(tx, a.ID); a.SandboxID == sandboxID && !a.Over() && !a.Deleted {
			list = append(list, a)
		}
	}
	return slices.CompactFunc(oldestFirst(list), func(a, b Agent) bool { return a.ID == b.ID })
}

// busyIn reports whether agents of a sandbox have incarnations whose ends are not decided about.
func (l *Ledger) busyIn(tx *store.Tx, sandboxID string) bool {
	return slices.ContainsFunc(l.agentsIn(tx, sandboxID), func(a Agent) bool { return a.Incarnation != nil || a.Undecided })
}
