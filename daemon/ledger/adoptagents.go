package ledger

import (
	"cmp"
	"context"
	"errors"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// AdoptedAgent is an agent whose record is lost, as its newest incarnation was begun.
type AdoptedAgent struct {
	ID, Name string
	// Parent may be an agent that is lost; then the agent is adopted by agent.Init, as after the
	// end of its parent. Empty means agent.Init.
	Parent     string
	Depth      uint32
	Stack      string
	StackRoots []string
	Reach      string
	Tree       string
	After      []string
	Work       []byte
	Spec       *agboxv1.AgentSpec
	SandboxID  string
	Owned      bool
	// Incarnation is its number, 0 if none has begun, and Attempt the number of crashes before
	// it, plus 1.
	Incarnation, Attempt uint32
	Strategy             string
	// Progress has the totals before it, or is nil.
	Progress *agboxv1.AgentProgress
	// Checkpoints are those whose files are there, oldest first.
	Checkpoints []*agboxv1.AgentCheckpoint
}

// spawned says who the agent is.
func (a AdoptedAgent) spawned() *agboxv1.AgentEvent {
	spawned := &agboxv1.AgentSpawned{
		Name: a.Name, Class: a.Spec.GetClass(), Parent: cmp.Or(a.Parent, agents.Init), SandboxId: a.SandboxID, Owned: a.Owned,
		After: a.After, Depth: a.Depth, Stack: a.Stack, StackRoots: a.StackRoots, Reach: a.Reach, Tree: a.Tree,
	}
	if spawned.GetParent() != agents.Init {
		spawned.Lifetime = a.Spec.GetLifetime() // the holds of clients are lost, so the others are not suspended
	}
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: spawned},
	}
}

// GiveBorders gives agents that are to be adopted what agent.GiveBorders does.
func GiveBorders(list []AdoptedAgent) {
	records := make([]*agents.Record, len(list))
	for i, a := range list {
		ev := a.spawned()
		ev.AgentId, ev.Sequence = a.ID, 1
		r := agents.Fold(agents.Record{}, ev)
		records[i] = &r
	}
	agents.GiveBorders(records)
	for i, r := range records {
		list[i].StackRoots = r.StackRoots
	}
}

// AdoptAgent makes a record for an agent that has none. Its sandbox must have one. What its
// newest incarnation has reported, and how it ended, is read again.
func (l *Ledger) AdoptAgent(ctx context.Context, a AdoptedAgent) (Agent, error) {
	events := []*agboxv1.AgentEvent{a.spawned()}
	if a.Attempt > 1 {
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_PAUSED,
			Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{
				Reason: agboxv1.PauseReason_PAUSE_REASON_CRASH, Message: adoptedReason, Attempt: a.Attempt - 1, Strategy: a.Strategy,
			}},
		})
	}
	if a.Progress != nil {
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_PROGRESS, Details: &agboxv1.AgentEvent_Progress{Progress: a.Progress},
		})
	}
	for _, c := range a.Checkpoints {
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_CHECKPOINT, Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: c},
		})
	}
	if a.Incarnation > 0 {
		events = append(events, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: a.Incarnation,
			Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{
				ExecId: agents.ExecID(a.ID, a.Incarnation), SandboxId: a.SandboxID, Attempt: a.Attempt, Strategy: a.Strategy,
			}},
		})
	}
	return l.updateAgent(ctx, a.ID, func(t *agentTxn) error {
		if err := errors.Join(t.tx.ReserveAgent(a.ID, l.now()), t.tx.PutAgentConfig(a.ID, a.Spec)); err != nil {
			return err
		}
		if len(a.Work) > 0 {
			if err := t.tx.PutAgentWork(a.ID, a.Work); err != nil {
				return err
			}
		}
		t.a.Spec = a.Spec
		for _, ev := range events {
			if err := t.put(a.ID, ev); err != nil { // not all of them could follow each other otherwise
				return err
			}
		}
		return nil
	})
}
