package execs

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// addWork adds the work of an agent, if it has one, to what its supervisor gets.
func (r *Runner) addWork(ctx context.Context, a ledger.Agent, boot *guestv1.AgentBoot) error {
	work, err := r.ledger.AgentWork(ctx, a.ID)
	if work != nil || a.Spec.GetWork() != "" { // its parent may have given it
		boot.Work = append([]byte{}, work...) // an empty file is a work too
	}
	return err
}
