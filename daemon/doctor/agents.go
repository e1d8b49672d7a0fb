package doctor

import (
	"fmt"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
)

// agents reports the agents that do not get on by themselves.
func (x *examination) agents() {
	for _, a := range x.ledger.Living() {
		f := &agboxv1.DoctorFinding{Action: leave, Kind: agentRecord, Name: a.Name, Id: a.ID, SandboxId: a.SandboxID}
		trouble := x.loop.AgentTrouble(a.ID)
		switch {
		case a.Unasked() && agents.RulesOf(a.Spec).Revival == agents.Ask:
			f.NeedsPerson = true
			f.Why = fmt.Sprintf("It is ORPHANED and waits for a decision: \"agbox agent resolve --revive %s\", or --reap.", a.ID)
		case a.Unasked() && a.Pause.Stranded && x.gone(a):
			f.NeedsPerson = true
			f.Why = fmt.Sprintf("It is ORPHANED, and the container of its sandbox is gone: \"agbox agent resolve --reap %s\" gives the agent up, and --revive tries once to start the sandbox.", a.ID)
		case a.Unasked():
			f.Why = fmt.Sprintf("It is ORPHANED, and agbox tries to start its sandbox again, less and less often, at last once an hour: \"agbox agent resolve --revive %s\" tries it now, and --reap gives the agent up.", a.ID)
		case trouble != "":
			f.Why = "It does not get on: " + trouble
		default:
			continue
		}
		x.add(f)
	}
}

// gone reports whether agbox does not try to start the sandbox of an agent, which others own.
func (x *examination) gone(a ledger.Agent) bool {
	sb, exists := x.ledger.Sandbox(a.SandboxID)
	return exists && sb.Missing() && !a.Owned
}
