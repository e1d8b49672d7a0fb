package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// Agent is the record of an agent with its spec. Both are read-only.
type Agent struct {
	agent.Record
	Spec *agboxv1.AgentSpec
}

// agentBook has the records of all agents that are not deleted.
type agentBook struct {
	// mu guards the fields below. It is held only for map operations, never for I/O.
	mu sync.RWMutex
	// all has the agents by id.
	all map[string]Agent
	// changed has a channel for each agent that somebody waits for. The next commit closes
	// it. The key "" is for any agent.
	changed map[string]chan struct{}
	// published is the position of the newest event that the maps include.
	published uint64
}

// openAgents loads all agents. An agent whose record cannot be read is logged and left
// out.
func (l *Ledger) openAgents(ctx context.Context) error {
	l.agents = agentBook{all: make(map[string]Agent), changed: make(map[string]chan struct{})}
	var ids []string
	err := l.store.View(ctx, func(tx *store.Tx) error {
		ids, l.agents.published = tx.AgentIDs(), tx.LastAgentPosition()
		return nil
	})
	if err != nil {
		return fmt.Errorf("list agents: %w", err)
	}
	for _, id := range ids {
		a, err := l.loadAgent(ctx, id)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			l.log.Error("the record of an agent cannot be read and is left out", "agent_id", id, "error", err)
		case a.Exists() && !a.Deleted:
			l.agents.all[id] = a
		}
	}
	return nil
}

// loadAgent folds one agent from the store.
func (l *Ledger) loadAgent(ctx context.Context, id string) (Agent, error) {
	var a Agent
	err := l.store.View(ctx, func(tx *store.Tx) (err error) {
		a.Spec, err = tx.AgentConfig(id)
		return err
	})
	for page := (store.AgentPage{More: true}); err == nil && page.More; {
		err = l.store.View(ctx, func(tx *store.Tx) error {
			page = tx.AgentEvents(id, page.Next, loadPage)
			return nil
		})
		if err == nil && len(page.Bad) > 0 {
			return a, page.Bad[0]
		}
		for _, ev := range page.Events {
			a.Record = agent.Fold(a.Record, ev)
		}
	}
	return a, err
}

// Agent returns an agent that is not deleted.
func (l *Ledger) Agent(id string) (Agent, bool) {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	a, ok := l.agents.all[id]
	return a, ok
}

// Agents returns the agents that fit, oldest first. nil fits all.
func (l *Ledger) Agents(fits func(Agent) bool) []Agent {
	l.agents.mu.RLock()
	var list []Agent
	for _, a := range l.agents.all {
		if fits == nil || fits(a) {
			list = append(list, a)
		}
	}
	l.agents.mu.RUnlock()
	slices.SortFunc(list, func(a, b Agent) int { return cmp.Compare(a.Position, b.Position) })
	return list
}

// AgentsIn returns the agents of a sandbox, oldest first.
func (l *Ledger) AgentsIn(sandboxID string) []Agent {
	return l.Agents(func(a Agent) bool { return a.SandboxID == sandboxID })
}

// AgentOf returns the agent whose current incarnation is that exec.
func (l *Ledger) AgentOf(sandboxID, execID string) (Agent, bool) {
	all := l.Agents(func(a Agent) bool {
		return a.Incarnation != nil && a.Incarnation.SandboxID == sandboxID && a.Incarnation.ExecID == execID
	})
	if len(all) == 0 {
		return Agent{}, false
	}
	return all[0], true
}

// hasNoAgents refuses a sandbox with agents that have not ended, and names them.
func (t *txn) hasNoAgents() error {
	in := t.l.AgentsIn(t.sb.ID)
	spawned, _ := t.tx.Value(spawnOverlay{}).([]Agent)
	for _, a := range spawned {
		if a.SandboxID == t.sb.ID {
			in = append(in, a)
		}
	}
	var names []string
	for _, a := range in {
		if a = t.l.agentIn(t.tx, a.ID); !a.Over() {
			names = append(names, cmp.Or(a.Name, a.ID))
		}
	}
	if len(names) == 0 {
		return nil
	}
	shown := names[:min(len(names), 10)]
	if len(shown) < len(names) {
		shown = append(slices.Clone(shown), "...")
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS,
		"In sandbox %s there are agents that have not ended: %s. End them with \"agbox agent kill\", or remove the sandbox with \"agbox rm -f\".",
		t.sb.ID, strings.Join(shown, ", ")).With("sandbox_id", t.sb.ID)
}

// FindAgent resolves an id, a name or a unique prefix of an id, in this order. Of several
// agents with a name, the one that has not ended is meant, else the newest.
func (l *Ledger) FindAgent(ref string) (Agent, error) {
	if a, ok := l.Agent(ref); ok {
		return a, nil
	}
	named := l.Agents(func(a Agent) bool { return a.Name == ref })
	for _, a := range named {
		if !a.Over() {
			return a, nil
		}
	}
	if len(named) > 0 {
		return named[len(named)-1], nil
	}
	fits := l.Agents(func(a Agent) bool { return strings.HasPrefix(a.ID, ref) })
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return Agent{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_AGENT_NOT_FOUND,
			"%q fits %d agents: give more of the id.", ref, len(fits)).With("agent_id", ref)
	}
	return Agent{}, agentNotFound(ref)
}

func agentNotFound(ref string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
		"There is no agent %q; \"agbox agent ls -a\" shows all.", ref).With("agent_id", ref)
}

// AgentChanged returns a channel that the next commit about the agent closes; an empty id
// means any agent. Call it before reading the record, or a change in between is missed.
func (l *Ledger) AgentChanged(id string) <-chan struct{} {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	ch, ok := l.agents.changed[id]
	if !ok {
		ch = make(chan struct{})
		l.agents.changed[id] = ch
	}
	return ch
}

// publishAgent makes a committed change visible and wakes the callers that wait for it.
// The store calls it in commit order, before the change is acknowledged.
func (l *Ledger) publishAgent(a Agent, position uint64) {
	book := &l.agents
	book.mu.Lock()
	defer book.mu.Unlock()
	book.published = max(book.published, position)
	if a.Deleted {
		delete(book.all, a.ID)
	} else {
		book.all[a.ID] = a
	}
	for _, key := range [...]string{a.ID, ""} {
		if ch, waiting := book.changed[key]; waiting {
			delete(book.changed, key)
			close(ch)
		}
	}
}

// NewestOfAgents is the position of the newest event of an agent that the records include.
func (l *Ledger) NewestOfAgents() uint64 {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	return l.agents.published
}
