package execs

import (
	"context"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
)

// Look says how files in a sandbox and its limits are now, as a user of the sandbox may know it.
func (r *Runner) Look(ctx context.Context, sandboxID, user string, paths []string) (journal.Seen, error) {
	lk, err := r.links.Wait(ctx, sandboxID)
	if err != nil {
		return journal.Seen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, links.CallTimeout)
	defer cancel()
	return lk.Conn.Look(ctx, user, paths)
}
