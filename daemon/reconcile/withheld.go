package reconcile

import (
	"cmp"
	"fmt"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// without returns the names of the services that must not run during the incarnation of an
// agent.
func without(a ledger.Agent) []string {
	if a.Incarnation == nil || a.Strategy != agents.ReducedFootprint {
		return nil
	}
	return a.Spec.GetRetry().GetReduced().GetWithoutServices()
}

// withheld returns the services of a sandbox that must not run now, with the reason.
func (l *Loop) withheld(sandboxID string) map[string]string {
	var names map[string]string
	for _, a := range l.ledger.AgentsIn(sandboxID) {
		for _, name := range without(a) {
			if names == nil {
				names = make(map[string]string)
			}
			names[name] = fmt.Sprintf("Service %s is stopped while agent %s runs with a reduced footprint, because its memory ran out.", name, cmp.Or(a.Name, a.ID))
		}
	}
	return names
}

// stillRuns reports whether a service of the sandbox runs, or is being started, that the
// incarnation of the agent must be without.
func stillRuns(sb ledger.Sandbox, a ledger.Agent) bool {
	for _, name := range without(a) {
		if phase := sb.Services[name].Phase; phase == machine.Starting || phase == machine.Up {
			return true
		}
	}
	return false
}
