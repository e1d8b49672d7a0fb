package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// FindSandbox returns the sandbox with exactly this id, also a deleted one whose record is
// kept. A name or the beginning of an id is SANDBOX_NOT_FOUND: see Resolve.
func (l *Ledger) FindSandbox(ctx context.Context, id string) (Sandbox, error) {
	if sb, ok := l.Sandbox(id); ok {
		return sb, nil
	}
	return l.Past(ctx, id)
}

// FindExec returns the id of the sandbox of the exec with exactly this id, running or kept.
// Anything else is EXEC_NOT_FOUND.
func (l *Ledger) FindExec(ctx context.Context, id string) (sandboxID string, err error) {
	l.mu.RLock()
	r, running := l.running[id]
	l.mu.RUnlock()
	if running {
		return r.sandboxID, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		var kept bool
		if sandboxID, kept = l.keptExec(tx, id); !kept {
			return execNotFound(id)
		}
		return nil
	})
	return sandboxID, err
}

// keptExec returns the sandbox of an exec whose request is stored.
func (l *Ledger) keptExec(tx *store.Tx, id string) (sandboxID string, kept bool) {
	if _, used := tx.ExecReserved(id); !used {
		return "", false // so no sandbox has to be searched
	}
	if of := l.execs.sandboxOf(id); of != "" && tx.HasExec(of, id) {
		return of, true
	}
	l.execs.searches.Add(1)
	if sandboxID, kept = tx.ExecSandbox(id); kept {
		l.execs.put(id, sandboxID)
	}
	return sandboxID, kept
}

// FindAgent returns the agent with exactly this id, ended or not. Anything else is
// AGENT_NOT_FOUND.
func (l *Ledger) FindAgent(id string) (Agent, error) {
	if a, ok := l.Agent(id); ok {
		return a, nil
	}
	if id == agents.Init { // it has a record only after the first crash of a class
		return Agent{}, isRoot()
	}
	return Agent{}, agentNotFound(id)
}

// The sentences of a request for a text that is no id say how to find the id.

func notFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND,
		"There is no sandbox with the id %q; \"agbox ls\" shows the ids and names of all.", id).With("sandbox_id", id)
}

func execNotFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
		"There is no exec with the id %q; \"agbox ps -a SANDBOX\" shows the ids of those of a sandbox.", id).With("exec_id", id)
}

// recipientNotFound is for messages, which programs of agents address by id or name.
func recipientNotFound(ref string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND, "There is no agent %q; \"agbox agent ls -a\" shows all.", ref).With("agent_id", ref)
}

func agentNotFound(id string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
		"There is no agent with the id %q; \"agbox agent ls -a\" shows the ids and names of all.", id).With("agent_id", id)
}
