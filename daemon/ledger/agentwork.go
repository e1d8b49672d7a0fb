package ledger

import (
	"context"

	"github.com/agbox/agbox/store"
)

// AgentWork returns the work of an agent as it was when the agent was spawned.
func (l *Ledger) AgentWork(ctx context.Context, id string) (work []byte, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		work, err = tx.AgentWork(id)
		return err
	})
	return work, err
}
