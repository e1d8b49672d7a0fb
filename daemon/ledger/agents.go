package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// Agent is the record of an agent with its spec. Both are read-only.
type Agent struct {
	agents.Record
	Spec *agboxv1.AgentSpec
}

// openAgents loads all agents. An agent whose record cannot be read is logged and left
// out.
func (l *Ledger) openAgents(ctx context.Context) error {
	l.agents.init()
	var ids []string
	err := l.store.View(ctx, func(tx *store.Tx) error {
		ids, l.agents.published = tx.AgentIDs(), tx.LastAgentPosition()
		return nil
	})
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	var loaded []*Agent
	var records []*agents.Record
	for _, id := range ids {
		l.agents.touched[id] = struct{}{}
		a, err := l.loadAgent(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			l.log.Error("the record of an agent cannot be read and is left out", "agent_id", id, "error", err)
		case a.Exists():
			loaded, records = append(loaded, &a), append(records, &a.Record)
		}
	}
	agents.GiveBorders(records)
	for _, a := range loaded {
		if a.Deleted {
			l.agents.offspring.move("", a.Origin, a.ID)
		} else {
			l.agents.putLocked(*a) // nobody else uses the ledger yet
		}
	}
	l.openLeases()
	if err := l.openInboxes(ctx); err != nil {
		return err
	}
	return l.settleLeases(ctx)
}

// loadAgent folds one agent from the store.
func (l *Ledger) loadAgent(ctx context.Context, id string) (Agent, error) {
	var a Agent
	err := l.store.View(ctx, func(tx *store.Tx) (err error) {
		a.Spec, err = tx.AgentConfig(id)
		return err
	})
	for page := (store.AgentPage{More: true}); err == nil && page.More; {
		err = l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.AgentEvents(id, page.Next, loadPage)
			return nil
		})
		if err == nil && len(page.Bad) > 0 {
			return a, page.Bad[0]
		}
		for _, ev := range page.Events {
			a.Record = agents.Fold(a.Record, ev)
		}
	}
	return a, err
}

// hasNoAgents refuses a sandbox with agents that have not ended, and names them.
func (t *txn) hasNoAgents() error {
	in := t.l.AgentsIn(t.sb.ID)
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range spawned {
		if a.SandboxID == t.sb.ID {
			in = append(in, a)
		}
	}
	var living []Agent
	for _, a := range in {
		if a = t.l.agentIn(t.tx, a.ID); !a.Over() {
			living = append(living, a)
		}
	}
	if len(living) == 0 {
		return nil
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS,
		"In sandbox %s there are agents that have not ended: %s. End them with \"agbox agent kill\", or remove the sandbox with \"agbox rm -f\".",
		t.sb.Called(), naming(living)).With("sandbox_id", t.sb.ID)
}
