package doctor

import (
	"fmt"
	"slices"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// agentAdoption is one agent that gets a new record.
type agentAdoption struct {
	ledger.AdoptedAgent
	finding *agboxv1.DoctorFinding
}

// adoptAgents adds the agents to the planned sandboxes and returns what it found.
func (o Offline) adoptAgents(plan []adoption) []*agboxv1.DoctorFinding {
	var list []*agboxv1.DoctorFinding
	names := make(map[string]bool)
	for _, a := range o.Agents() {
		f := &agboxv1.DoctorFinding{Action: leave, Kind: agentRecord, Name: a.Name, Id: a.ID, SandboxId: a.SandboxID}
		list = append(list, f)
		at := slices.IndexFunc(plan, func(p adoption) bool { return p.ID == a.SandboxID })
		if at < 0 {
			f.Why = "The container of its sandbox is gone, so the agent is not adopted. Spawn it anew."
			continue
		}
		f.Action = adopt
		f.Why = fmt.Sprintf("It is adopted with its incarnation %d; its earlier history is lost.", a.Incarnation)
		if a.Incarnation == 0 {
			f.Why = "It is adopted; it had not begun."
		}
		if names[a.Name] && a.Name != "" {
			f.Why += fmt.Sprintf(" Another agent has the name %q; this one gets none.", a.Name)
			a.Name = ""
		}
		names[a.Name] = true
		plan[at].agents = append(plan[at].agents, agentAdoption{a, f})
	}
	return list
}
