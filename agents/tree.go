package agents

import (
	"cmp"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Kin is what is known about the agents that an agent depends on. The zero value is an agent
// whose parent lives, and that waits for no other agent.
type Kin struct {
	// ParentOver means that the parent has ended or does not exist any more. Heir is then the
	// id of the nearest ancestor that has not ended, at last Init.
	ParentOver bool
	Heir       string
	// ParentKill is the wish to end the parent, if it has not ended otherwise, or nil.
	ParentKill *agboxv1.AgentKill
	// Awaited are the ids of the agents that it is to follow and that have not completed. Failed
	// describes one among them that never will; it is empty if there is none.
	Awaited []string
	Failed  string
}

// KinOf returns what an agent must know of its parent. heir is its nearest ancestor that has
// not ended.
func KinOf(parent Record, heir string) Kin {
	k := Kin{ParentOver: parent.Over() || !parent.Exists(), Heir: heir}
	if parent.State == Aborted || !k.ParentOver {
		k.ParentKill = parent.Kill
	}
	return k
}

// Await adds an agent that must be COMPLETED before. The record is empty if it was removed.
func (k *Kin) Await(id string, r Record) {
	if r.State == Completed {
		return
	}
	k.Awaited = append(k.Awaited, id)
	switch {
	case !r.Exists():
		k.Failed = "agent " + id + ", which was removed"
	case r.Over():
		k.Failed = "agent " + cmp.Or(r.Name, id) + ", which is " + r.Word()
	}
}

// nextOfKin returns the event that follows for an agent from the end of its parent: it ends
// too, or the nearest living ancestor adopts it.
func nextOfKin(r Record, kin Kin) (ev *agboxv1.AgentEvent, why string) {
	switch {
	case r.Kill == nil && stopsWith(r, kin):
		return &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED,
			Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{
				Mode: kin.ParentKill.GetMode(), By: "the kill of its parent", Cascade: kin.ParentKill.GetCascade(),
			}},
		}, "its parent was killed"
	case r.Kill == nil && kin.killed() && r.HeldBy(AgentHolder(r.Parent)):
		return Closed(AgentHolder(r.Parent), "it was killed"), "its parent was killed, and others hold it"
	case kin.ParentOver:
		return &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_REPARENTED,
			Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{
				Parent: kin.Heir, From: r.Parent,
			}},
		}, "its parent has ended"
	}
	return nil, ""
}

// stopsWith reports whether an agent is to end because its parent was killed. Whoever loses
// its parent otherwise is adopted.
func stopsWith(r Record, kin Kin) bool {
	switch kin.ParentKill.GetCascade() {
	case agboxv1.KillCascade_KILL_CASCADE_TREE:
		return true
	case agboxv1.KillCascade_KILL_CASCADE_NONE:
		return false
	}
	return kin.killed() && r.HeldOnlyBy(r.Parent)
}

// killed reports whether the parent was killed and so holds nobody any more. That of a parent
// that has ended otherwise leaves its holds to the heir.
func (k Kin) killed() bool {
	return k.ParentOver && k.ParentKill.GetCascade() == agboxv1.KillCascade_KILL_CASCADE_UNSPECIFIED && k.ParentKill != nil
}
