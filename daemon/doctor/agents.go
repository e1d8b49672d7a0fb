package doctor

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
)

// agents reports the agents that do not get on by themselves.
func (x *examination) agents() {
	for _, a := range x.ledger.Living() {
		f := &agboxv1.DoctorFinding{Action: leave, Kind: agentRecord, Name: a.Name, Id: a.ID, SandboxId: a.SandboxID}
		trouble := x.loop.AgentTrouble(a.ID)
		switch {
		case a.Orphaned() && !a.Pause.Woken && agent.RulesOf(a.Spec).Revival == agent.Ask:
			f.NeedsPerson = true
			f.Why = fmt.Sprintf("It is ORPHANED and waits for a decision: \"agbox agent resolve --revive %s\", or --reap.", a.ID)
		case a.Orphaned() && !a.Pause.Woken:
			f.Why = fmt.Sprintf("It is ORPHANED, and agbox tries to start its sandbox again once a minute: \"agbox agent resolve --reap %s\" gives the agent up.", a.ID)
		case trouble != "":
			f.Why = "It does not get on: " + trouble
		default:
			continue
		}
		x.add(f)
	}
}
