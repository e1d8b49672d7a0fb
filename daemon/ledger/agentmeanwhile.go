package ledger

import (
	"context"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// maxHistory is how many events are read to find out who held the resources of an agent.
const maxHistory = 20000

// HeldMeanwhile returns who else held the resources of an agent since its pause began. whole is
// false if agents were removed since, or so much has happened that it was not all read.
func (l *Ledger) HeldMeanwhile(ctx context.Context, a Agent) (list []agents.Passed, whole bool, err error) {
	m := agents.NewMeanwhile(a.Record)
	if m.Empty() {
		return []agents.Passed{}, true, nil
	}
	scope := a.LeaseParty().Scope
	concerns := func(b Agent) bool { return b.Exists() && b.ID != a.ID && b.LeaseParty().Scope == scope }
	var page store.AgentPage
	for at, read := a.AwayFrom, 0; read == 0 || page.More && read < maxHistory; at = page.Next {
		err := l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.OrderedAgentEvents(at, agentPage)
			whole = tx.AgentsTrimmed().UpTo <= a.AwayFrom
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		for _, ev := range page.Events {
			if ev.GetLease() == nil {
				continue
			}
			if b, _ := l.Agent(ev.GetAgentId()); concerns(b) {
				m.Saw(ev)
			}
		}
		read += agentPage
	}
	for _, b := range l.leased(concerns) {
		m.Holds(b.ID, b.Holds)
	}
	return m.Passed(func(id string) string { b, _ := l.Agent(id); return b.Name }), whole && !page.More, nil
}

// agentPage is how many events are read at once.
const agentPage = 500
