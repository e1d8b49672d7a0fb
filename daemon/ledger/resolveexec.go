package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

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
		for _, e := range tx.ExecsWithPrefix(text, MaxReferents+1) {
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
	l.mu.RLock()
	defer l.mu.RUnlock()
	if r, running := l.running[text]; running {
		name := l.sandboxes[r.sandboxID].Execs[text].Name
		return []*agboxv1.Referent{{Id: text, Name: name, SandboxId: r.sandboxID, Match: agboxv1.RefMatch_REF_MATCH_ID}}
	}
	for _, sb := range l.sandboxes {
		for _, e := range sb.Execs {
			if e.Name == text {
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
	var m matches
	err := l.store.View(ctx, func(tx *store.Tx) error {
		m = matchesWithin(tx, box.GetId(), text)
		return nil
	})
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
