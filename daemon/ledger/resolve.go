package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// FindSandbox returns the sandbox with exactly this id, also a deleted one whose record is
// kept. A name or the beginning of an id is SANDBOX_NOT_FOUND: see Resolve. So is what was made
// ahead and that nobody has, until it is removed.
func (l *Ledger) FindSandbox(ctx context.Context, id string) (sb Sandbox, err error) {
	sb, living := l.Sandbox(id)
	if !living {
		sb, err = l.Past(ctx, id)
	}
	if err == nil && sb.hidden() {
		return Sandbox{}, notFound(id)
	}
	return sb, err
}

// SandboxNamed returns the id of the sandbox that a text means by Resolve. The beginning of an id is
// SANDBOX_NOT_FOUND. If it is the id of a deleted sandbox and the name of another, the error is SANDBOX_AMBIGUOUS.
func (l *Ledger) SandboxNamed(ctx context.Context, text string) (string, error) {
	list, err := l.resolveSandbox(ctx, text)
	switch {
	case err != nil:
		return "", err
	case list[0].GetMatch() == agboxv1.RefMatch_REF_MATCH_PREFIX:
		return "", notFound(text)
	case len(list) > 1 && list[0].GetId() != list[1].GetId():
		return "", fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_SANDBOX_AMBIGUOUS,
			"%q is the id of sandbox %s and the name of %s; give the id of the one that is meant.", text, list[0].GetId(), list[1].GetId()).
			With("sandbox_id", text)
	}
	return list[0].GetId(), nil
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

// FindExec returns the id of the sandbox of the exec with exactly this id, running or kept.
// Anything else is EXEC_NOT_FOUND.
func (l *Ledger) FindExec(ctx context.Context, id string) (sandboxID string, err error) {
	l.sandboxes.mu.RLock()
	r, running := l.sandboxes.running[id]
	l.sandboxes.mu.RUnlock()
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

func (sb Sandbox) referent(match agboxv1.RefMatch) *agboxv1.Referent {
	return &agboxv1.Referent{Id: sb.ID, Name: sb.Name, Match: match}
}

func (a Agent) hidden() bool { return false }

func (a Agent) referent(match agboxv1.RefMatch) *agboxv1.Referent {
	return &agboxv1.Referent{Id: a.ID, Name: a.Name, Match: match}
}

func (l *Ledger) resolveSandbox(ctx context.Context, text string) (list []*agboxv1.Referent, err error) {
	if sb, ok := l.Sandbox(text); ok && !sb.hidden() {
		return append(list, sb.referent(agboxv1.RefMatch_REF_MATCH_ID)), nil
	}
	past, err := l.FindSandbox(ctx, text)
	if err == nil {
		list = append(list, past.referent(agboxv1.RefMatch_REF_MATCH_ID))
	}
	l.sandboxes.mu.RLock()
	named, ok := l.sandboxes.all[l.sandboxes.names[text]]
	l.sandboxes.mu.RUnlock()
	if ok {
		list = append(list, named.referent(agboxv1.RefMatch_REF_MATCH_NAME))
	}
	if len(list) == 0 && errdefs.IsNotFound(err) { // its request may have got one that was made ahead, with another id
		var of string
		if of, err = look(ctx, l, func(tx *store.Tx) string { return tx.SandboxOfKey(text) }); err == nil {
			past, err = l.FindSandbox(ctx, of)
		}
		if err == nil {
			list = append(list, past.referent(agboxv1.RefMatch_REF_MATCH_ID))
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	list, err = orBeginning(ctx, l, &l.sandboxes.book, list, text, "", func(tx *store.Tx) bool { _, used := tx.SandboxReserved(text); return used })
	if err == nil && len(list) == 0 {
		err = fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND,
			"There is no sandbox %q; \"agbox ls\" shows all.", text).With("sandbox_id", text)
	}
	return list, err
}

// orBeginning returns what a text means: the records of the list, else those whose ids begin with
// it, but for one. A text that was ever an id is no beginning.
func orBeginning[R record](ctx context.Context, l *Ledger, b *book[R], list []*agboxv1.Referent, text, but string, reserved func(*store.Tx) bool) ([]*agboxv1.Referent, error) {
	if len(list) > 0 {
		return list, nil
	}
	if used, err := look(ctx, l, reserved); used || err != nil {
		return nil, err
	}
	return b.beginning(text, but), nil
}

func (l *Ledger) resolveAgent(ctx context.Context, text string) (list []*agboxv1.Referent, err error) {
	if text == agents.Init { // also before it has a record
		return append(list, &agboxv1.Referent{Id: text, Match: agboxv1.RefMatch_REF_MATCH_ID}), nil
	}
	a, exists := l.Agent(text)
	if exists {
		list = append(list, a.referent(agboxv1.RefMatch_REF_MATCH_ID))
		if !a.Over() {
			return list, nil
		}
	}
	named, match := l.agentsNamed(text)
	for _, b := range named {
		if !exists || b.ID != a.ID && !b.Over() {
			list = append(list, b.referent(match))
		}
	}
	list, err = orBeginning(ctx, l, &l.agents.book, list, text, agents.Init, func(tx *store.Tx) bool { return tx.AgentReserved(text) })
	if err == nil && len(list) == 0 {
		err = recipientNotFound(text)
	}
	return list, err
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

func (l *Ledger) resolveExec(ctx context.Context, text string) (list []*agboxv1.Referent, err error) {
	running := l.runningExecs(text)
	if len(running) == 1 && running[0].GetMatch() == agboxv1.RefMatch_REF_MATCH_ID {
		return running, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		if sandboxID, kept := l.keptExec(tx, text); kept {
			list = append(list, keptReferent(tx, sandboxID, text, agboxv1.RefMatch_REF_MATCH_ID))
		}
		list = append(list, running...)
		if _, used := tx.ExecReserved(text); used || len(list) > 0 {
			return nil
		}
		hidden := func(sandboxID string) bool { // only who knows an id finds its commands
			sb, living := l.Sandbox(sandboxID)
			return living && sb.hidden()
		}
		for _, e := range tx.ExecsWithPrefix(text, MaxReferents+1, hidden) {
			list = append(list, keptReferent(tx, e.SandboxID, e.ExecID, agboxv1.RefMatch_REF_MATCH_PREFIX))
		}
		return nil
	})
	if err == nil && len(list) == 0 {
		err = fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
			"There is no exec %q; \"agbox ps -a SANDBOX\" shows those of a sandbox.", text).With("exec_id", text)
	}
	return list, err
}

// keptReferent describes an exec whose request is stored. An unreadable one has no name.
func keptReferent(tx *store.Tx, sandboxID, execID string, match agboxv1.RefMatch) *agboxv1.Referent {
	req, _ := tx.ExecConfig(sandboxID, execID)
	return &agboxv1.Referent{Id: execID, Name: req.GetName(), SandboxId: sandboxID, Match: match}
}

// runningExecs returns the running exec with that id, or those with that name, which is
// unique only within a sandbox.
func (l *Ledger) runningExecs(text string) (list []*agboxv1.Referent) {
	l.sandboxes.mu.RLock()
	defer l.sandboxes.mu.RUnlock()
	if r, running := l.sandboxes.running[text]; running {
		name := l.sandboxes.all[r.sandboxID].Execs[text].Name
		return []*agboxv1.Referent{{Id: text, Name: name, SandboxId: r.sandboxID, Match: agboxv1.RefMatch_REF_MATCH_ID}}
	}
	for _, sb := range l.sandboxes.all {
		for _, e := range sb.Execs {
			if e.Name == text && !sb.hidden() {
				list = append(list, &agboxv1.Referent{Id: e.ID, Name: e.Name, SandboxId: sb.ID, Match: agboxv1.RefMatch_REF_MATCH_NAME})
			}
		}
	}
	slices.SortFunc(list, func(a, b *agboxv1.Referent) int { return strings.Compare(a.GetId(), b.GetId()) })
	return list[:min(len(list), MaxReferents+1)]
}

// resolveWithin resolves SANDBOX/EXEC. What a prefix of a sandbox leads to is found by a
// prefix too.
func (l *Ledger) resolveWithin(ctx context.Context, sandbox, exec string) (all []*agboxv1.Referent, err error) {
	boxes, err := l.resolveSandbox(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	for _, box := range boxes {
		list, none := l.resolveIn(ctx, box, exec)
		if none != nil && !errdefs.IsNotFound(none) {
			return nil, none
		}
		err = none
		if box.GetMatch() == agboxv1.RefMatch_REF_MATCH_PREFIX {
			for _, r := range list {
				r.Match = agboxv1.RefMatch_REF_MATCH_PREFIX
			}
		}
		all = append(all, list...)
	}
	if len(all) > 0 {
		return all[:min(len(all), MaxReferents+1)], nil
	}
	return nil, err
}

// resolveIn resolves the id of an exec of a sandbox, the name of a running one, that of the
// newest ended one with that name, or the beginning of an id, in this order.
func (l *Ledger) resolveIn(ctx context.Context, box *agboxv1.Referent, text string) ([]*agboxv1.Referent, error) {
	sb, _ := l.Sandbox(box.GetId()) // a deleted one runs nothing
	one := func(id, name string, match agboxv1.RefMatch) []*agboxv1.Referent {
		return []*agboxv1.Referent{{Id: id, Name: name, SandboxId: box.GetId(), Match: match}}
	}
	if e, running := sb.Execs[text]; running {
		return one(text, e.Name, agboxv1.RefMatch_REF_MATCH_ID), nil
	}
	found := ""
	for id, e := range sb.Execs {
		if e.Name == text && (found == "" || e.Main) { // the main command takes precedence over other execs with its name
			found = id
		}
	}
	m, err := look(ctx, l, func(tx *store.Tx) matches { return matchesWithin(tx, box.GetId(), text) })
	switch {
	case err != nil:
		return nil, err
	case m.exact != nil && found != "":
		return append([]*agboxv1.Referent{m.exact}, one(found, text, agboxv1.RefMatch_REF_MATCH_NAME)...), nil
	case m.exact != nil:
		return []*agboxv1.Referent{m.exact}, nil
	case found != "":
		return one(found, text, agboxv1.RefMatch_REF_MATCH_NAME), nil
	case m.bearers > 1:
		return one(m.named, text, agboxv1.RefMatch_REF_MATCH_NEWEST), nil
	case m.bearers == 1:
		return one(m.named, text, agboxv1.RefMatch_REF_MATCH_NAME), nil
	case len(m.fits) > 0:
		return m.fits, nil
	}
	called := box.GetName()
	if called == "" {
		called = box.GetId()
	}
	return nil, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
		"Sandbox %s has no exec %q; \"agbox ps -a %s\" shows those that it has.", called, text, called).
		With("sandbox_id", box.GetId()).With("exec_id", text)
}

// matches are the kept execs of a sandbox that match a text.
type matches struct {
	// exact has the text as its id.
	exact *agboxv1.Referent
	// fits have ids that begin with the text, at most MaxReferents+1.
	fits []*agboxv1.Referent
	// named is the newest exec with that name, of so many.
	named   string
	bearers int
}

func matchesWithin(tx *store.Tx, sandboxID, text string) (m matches) {
	var newest uint64
	for after, more := "", true; more; {
		page := tx.ExecIDs(sandboxID, after, loadPage)
		for _, id := range page {
			after = id
			if id == text {
				m.exact = keptReferent(tx, sandboxID, id, agboxv1.RefMatch_REF_MATCH_ID)
				return m
			}
			if strings.HasPrefix(id, text) && len(m.fits) <= MaxReferents {
				m.fits = append(m.fits, keptReferent(tx, sandboxID, id, agboxv1.RefMatch_REF_MATCH_PREFIX))
			}
			req, err := tx.ExecConfig(sandboxID, id)
			if err != nil || req.GetName() != text {
				continue // an unreadable one has no name
			}
			m.bearers++
			if ev, err := tx.ExecLastEvent(sandboxID, id); err == nil && ev.GetSequence() >= newest {
				newest, m.named = ev.GetSequence(), id
			}
		}
		more = len(page) == loadPage
	}
	if _, used := tx.ExecReserved(text); used {
		m.fits = nil
	}
	return m
}
