package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// MaxReferents bounds the candidates for a text.
const MaxReferents = 10

// Resolve returns what a text means: the sandbox, exec or agent with that id, and the one
// with that name; if there is neither, those whose ids begin with it. A text that was ever
// an id is no beginning of another one. It returns at most MaxReferents+1; none is an error,
// SANDBOX_NOT_FOUND, EXEC_NOT_FOUND or AGENT_NOT_FOUND.
func (l *Ledger) Resolve(ctx context.Context, kind agboxv1.RefKind, text string) (list []*agboxv1.Referent, err error) {
	switch kind {
	case agboxv1.RefKind_REF_KIND_SANDBOX:
		return l.resolveSandbox(ctx, text)
	case agboxv1.RefKind_REF_KIND_AGENT:
		return l.resolveAgent(ctx, text)
	}
	if sandbox, exec, within := strings.Cut(text, "/"); within {
		return l.resolveWithin(ctx, sandbox, exec)
	}
	return l.resolveExec(ctx, text)
}

func (l *Ledger) resolveSandbox(ctx context.Context, text string) (list []*agboxv1.Referent, err error) {
	add := func(sb Sandbox, match agboxv1.RefMatch) {
		list = append(list, &agboxv1.Referent{Id: sb.ID, Name: sb.Name, Match: match})
	}
	if sb, ok := l.Sandbox(text); ok {
		add(sb, agboxv1.RefMatch_REF_MATCH_ID)
		return list, nil
	}
	past, err := l.Past(ctx, text)
	switch {
	case err == nil:
		add(past, agboxv1.RefMatch_REF_MATCH_ID)
	case !errdefs.IsNotFound(err):
		return nil, err
	}
	l.mu.RLock()
	named, ok := l.sandboxes[l.names[text]]
	l.mu.RUnlock()
	if ok {
		add(named, agboxv1.RefMatch_REF_MATCH_NAME)
	}
	if len(list) > 0 {
		return list, nil
	}
	used, err := l.reserved(ctx, func(tx *store.Tx) bool { _, used := tx.SandboxReserved(text); return used })
	if err != nil {
		return nil, err
	}
	if !used {
		for _, sb := range l.sandboxesFrom(text) {
			add(sb, agboxv1.RefMatch_REF_MATCH_PREFIX)
		}
	}
	if len(list) == 0 {
		return nil, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND,
			"There is no sandbox %q; \"agbox ls\" shows all.", text).With("sandbox_id", text)
	}
	return list, nil
}

// sandboxesFrom returns sandboxes that are not deleted and whose ids begin with a text.
func (l *Ledger) sandboxesFrom(prefix string) (fits []Sandbox) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for id, sb := range l.sandboxes {
		if strings.HasPrefix(id, prefix) {
			fits = append(fits, sb)
		}
	}
	slices.SortFunc(fits, func(a, b Sandbox) int { return strings.Compare(a.ID, b.ID) })
	return fits[:min(len(fits), MaxReferents+1)]
}

// reserved reports whether a text was ever an id.
func (l *Ledger) reserved(ctx context.Context, has func(*store.Tx) bool) (used bool, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		used = has(tx)
		return nil
	})
	return used, err
}

func (l *Ledger) resolveAgent(ctx context.Context, text string) (list []*agboxv1.Referent, err error) {
	add := func(a Agent, match agboxv1.RefMatch) {
		list = append(list, &agboxv1.Referent{Id: a.ID, Name: a.Name, Match: match})
	}
	if text == agents.Init { // also before it has a record
		add(Agent{Record: agents.Record{ID: agents.Init}}, agboxv1.RefMatch_REF_MATCH_ID)
		return list, nil
	}
	a, exists := l.Agent(text)
	if exists {
		add(a, agboxv1.RefMatch_REF_MATCH_ID)
		if !a.Over() {
			return list, nil
		}
	}
	named, match := l.agentsNamed(text)
	for _, b := range named {
		if !exists || b.ID != a.ID && !b.Over() {
			add(b, match)
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	used, err := l.reserved(ctx, func(tx *store.Tx) bool { return tx.AgentReserved(text) })
	if err != nil {
		return nil, err
	}
	if !used {
		for _, a := range l.agentsFrom(text) {
			add(a, agboxv1.RefMatch_REF_MATCH_PREFIX)
		}
	}
	if len(list) == 0 {
		return nil, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND,
			"There is no agent %q; \"agbox agent ls -a\" shows all.", text).With("agent_id", text)
	}
	return list, nil
}

// agentNamed returns the agent with a name: the one that has not ended, else the newest. Of
// several living ones it returns that of a user, else the oldest.
func (l *Ledger) agentNamed(name string) (Agent, bool) {
	named, _ := l.agentsNamed(name)
	if len(named) == 0 {
		return Agent{}, false
	}
	return named[0], true
}

// agentsNamed returns the agents that a name may mean, of which there are several only if agents
// of different sandboxes have spawned them: a user's, else those that have not ended, else the
// newest of the others.
func (l *Ledger) agentsNamed(name string) ([]Agent, agboxv1.RefMatch) {
	var living, ended []Agent
	for _, a := range l.agents.among(l.agents.index.named, name) {
		switch {
		case !a.Over() && a.OfUser():
			return []Agent{a}, agboxv1.RefMatch_REF_MATCH_NAME
		case !a.Over():
			living = append(living, a)
		default:
			ended = append(ended, a)
		}
	}
	switch {
	case len(living) > 0:
		return living[:min(len(living), MaxReferents+1)], agboxv1.RefMatch_REF_MATCH_NAME
	case len(ended) > 1:
		return ended[len(ended)-1:], agboxv1.RefMatch_REF_MATCH_NEWEST
	}
	return ended, agboxv1.RefMatch_REF_MATCH_NAME
}

// agentsFrom returns agents whose ids begin with a text.
func (l *Ledger) agentsFrom(prefix string) (fits []Agent) {
	l.agents.mu.RLock()
	defer l.agents.mu.RUnlock()
	for id := range l.agents.all {
		if strings.HasPrefix(id, prefix) && id != agents.Init {
			fits = append(fits, l.agents.all[id])
		}
	}
	slices.SortFunc(fits, func(a, b Agent) int { return strings.Compare(a.ID, b.ID) })
	return fits[:min(len(fits), MaxReferents+1)]
}
