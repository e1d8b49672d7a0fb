package ledger

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Adopted is a sandbox that exists in the engine and whose record is lost.
type Adopted struct {
	ID string
	// Nonce is the nonce in the labels of its containers.
	Nonce string
	Spec  *agboxv1.CreateSpec
	// Running means that its primary runs.
	Running bool
	// Execs are its execs in the order in which they ended, and then those that run.
	// Only a sandbox whose primary runs has execs that run.
	Execs []AdoptedExec
}

// AdoptedExec is an exec of an adopted sandbox, as its status file describes it.
type AdoptedExec struct {
	// Request has the ids of exec and sandbox, and as much of the request as is known.
	// It is only shown: no daemon starts an adopted exec.
	Request *agboxv1.CreateExecRequest
	// Main tells that it is the container's own command.
	Main bool
	// StartedAt is nil if it is not known.
	StartedAt *timestamppb.Timestamp
	// End tells how it ended; nil while it runs.
	End *agboxv1.ExecEventDetails
}

// AdoptedExecs are the execs of one sandbox whose status files could be read.
type AdoptedExecs struct {
	Execs []AdoptedExec
	// Refused counts the status files that are damaged, forged, or of another sandbox's
	// main command.
	Refused int
	// Omitted counts the execs beyond the limits, as far as they were listed.
	Omitted int
	// More tells that not all status files were listed.
	More bool
}

// adoptedReason is the reason in the first event of an adopted sandbox.
const adoptedReason = "adopted after the loss of the database; earlier events are not known"

// Adopt makes a record for a sandbox that has none. The record says that the sandbox was
// READY, so the sandbox is kept whatever its container does next.
func (l *Ledger) Adopt(ctx context.Context, a Adopted) (Sandbox, error) {
	shown, err := l.hide(ctx, a.ID, a.Spec)
	if fault.ReasonOf(err) == agboxv1.ErrorReason_SECRETS_UNREADABLE {
		// What the key encrypted is lost with the database, so a damaged key has no worth.
		if err = l.store.Keys().Erase(a.ID); err == nil {
			shown, err = l.hide(ctx, a.ID, a.Spec)
		}
	}
	if err != nil {
		return Sandbox{}, err
	}
	return l.update(ctx, a.ID, func(t *txn) error {
		if err := t.tx.ReserveSandbox(a.ID, l.now()); err != nil {
			return err
		}
		if err := t.tx.PutSandboxConfig(a.ID, a.Spec); err != nil {
			return err
		}
		t.sb.Spec = shown
		begin := []*agboxv1.SandboxEvent{
			adoptionEvent(agboxv1.EventType_SANDBOX_ACCEPTED, &agboxv1.SandboxPhaseDetails{Nonce: a.Nonce, Name: a.Spec.GetName()}),
			adoptionEvent(agboxv1.EventType_SANDBOX_READY, &agboxv1.SandboxPhaseDetails{}),
		}
		if err := t.appendAll(begin); err != nil {
			return err
		}
		for _, e := range a.Execs {
			if err := t.adoptExec(e); err != nil {
				return err
			}
		}
		if a.Running {
			return nil
		}
		return t.appendAll([]*agboxv1.SandboxEvent{
			adoptionEvent(agboxv1.EventType_SANDBOX_STOP_REQUESTED, &agboxv1.SandboxPhaseDetails{}),
			adoptionEvent(agboxv1.EventType_SANDBOX_STOPPED, &agboxv1.SandboxPhaseDetails{}),
		})
	})
}

func adoptionEvent(typ agboxv1.EventType, d *agboxv1.SandboxPhaseDetails) *agboxv1.SandboxEvent {
	d.Reason = adoptedReason
	return phaseEvent(typ, d)
}

func (t *txn) appendAll(events []*agboxv1.SandboxEvent) error {
	for _, ev := range events {
		if err := t.append(ev); err != nil {
			return err
		}
	}
	return nil
}

// adoptExec records an exec that was started under the lost database. Its EXEC_STARTED
// has no boot id of a supervisor, so no daemon starts it again.
func (t *txn) adoptExec(e AdoptedExec) error {
	err := t.acceptExec(e.Request, &agboxv1.ExecEventDetails{Name: e.Request.GetName(), StartedAt: e.StartedAt, Main: e.Main})
	if err != nil || e.End == nil {
		return err
	}
	return t.append(execEnded(e.End, e.Main))
}

// Unreadable returns the sandboxes whose records could not be read when the
// ledger was opened, and why. The map must not be changed.
func (l *Ledger) Unreadable() map[string]error { return l.unreadable }

// AdoptedAgent is an agent whose record is lost, as its newest incarnation was begun. Its JSON is in
// a file, without what has no name there.
type AdoptedAgent struct {
	ID   string `json:"agent_id"`
	Name string `json:"name,omitempty"`
	// Parent may be an agent that is lost; then the agent is adopted by agent.Init, as after the
	// end of its parent. Empty means agent.Init.
	Parent     string   `json:"parent,omitempty"`
	Depth      uint32   `json:"depth,omitempty"`
	Stack      string   `json:"stack,omitempty"`
	StackRoots []string `json:"stack_roots,omitempty"`
	Reach      string   `json:"reach,omitempty"`
	Tree       string   `json:"tree,omitempty"`
	After      []string `json:"after,omitempty"`
	Work       []byte   `json:"work,omitempty"`
	SandboxID  string   `json:"sandbox_id"`
	Owned      bool     `json:"owned,omitempty"`
	// Incarnation is its number, 0 if none has begun, and Attempt the number of crashes before
	// it, plus 1.
	Incarnation uint32             `json:"incarnation,omitempty"`
	Attempt     uint32             `json:"attempt,omitempty"`
	Strategy    string             `json:"strategy,omitempty"`
	Spec        *agboxv1.AgentSpec `json:"-"`
	// Progress has the totals before it, or is nil.
	Progress *agboxv1.AgentProgress `json:"-"`
	// Checkpoints are those whose files are there, oldest first.
	Checkpoints []*agboxv1.AgentCheckpoint `json:"-"`
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
			if err := t.put(ev); err != nil { // not all of them could follow each other otherwise
				return err
			}
		}
		return nil
	})
}
