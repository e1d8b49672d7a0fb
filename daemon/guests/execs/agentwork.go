package execs

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// addWork adds the work of an agent, if it has one, to what its supervisor gets.
func (r *Runner) addWork(ctx context.Context, a ledger.Agent, boot *guestv1.AgentBoot) error {
	if a.Spec.GetWork() == "" {
		return nil
	}
	work, err := r.ledger.AgentWork(ctx, a.ID)
	boot.Work = append([]byte{}, work...) // an empty file is a work too
	return err
}
