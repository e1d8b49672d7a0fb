package ledger

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// FindExec resolves an id, the name of a running exec or a unique prefix of an id, in
// this order. SANDBOX/EXEC is searched within that sandbox, where the names of ended
// execs are valid too; the newest exec with the name is used.
func (l *Ledger) FindExec(ctx context.Context, ref string) (sandboxID, execID string, err error) {
	if sandbox, exec, within := strings.Cut(ref, "/"); within {
		sb, err := l.FindSandbox(ctx, sandbox)
		if err != nil {
			return "", "", err
		}
		execID, err = l.findWithin(ctx, sb, exec)
		return sb.ID, execID, err
	}
	if sandboxID, execID, err = l.findRunning(ref); err != nil || execID != "" {
		return sandboxID, execID, err
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		fits := tx.ExecsWithPrefix(ref, 2)
		switch {
		case len(fits) == 0:
			return execNotFound(ref)
		case len(fits) > 1 && fits[0].ExecID != ref:
			return execAmbiguous(ref)
		}
		sandboxID, execID = fits[0].SandboxID, fits[0].ExecID
		return nil
	})
	return sandboxID, execID, err
}

// findWithin resolves the name of a running exec of a sandbox, an id, the name of the
// newest exec with that name, or a unique prefix of an id, in this order.
func (l *Ledger) findWithin(ctx context.Context, sb Sandbox, ref string) (string, error) {
	if _, running := sb.Execs[ref]; running {
		return ref, nil
	}
	found := ""
	for id, e := range sb.Execs {
		if e.Name == ref && (found == "" || e.Main) { // the main command takes precedence over other execs with its name
			found = id
		}
	}
	if found != "" {
		return found, nil
	}
	var m matches
	err := l.store.View(ctx, func(tx *store.Tx) error {
		m = matchesWithin(tx, sb.ID, ref)
		return nil
	})
	switch {
	case err != nil:
		return "", err
	case m.exact || m.fits == 1 && m.named == "":
		return m.first, nil
	case m.named != "":
		return m.named, nil
	case m.fits > 1:
		return "", execAmbiguous(ref)
	}
	return "", fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
		"Sandbox %s has no exec %q; \"agbox ps -a %s\" shows those that it has.", sb.Called(), ref, sb.Called()).
		With("sandbox_id", sb.ID).With("exec_id", ref)
}

// matches are the kept execs of a sandbox that match a reference.
type matches struct {
	// exact means that the id of first equals the reference.
	exact bool
	// first is the first id that begins with the reference. fits is the number of such
	// ids.
	first string
	fits  int
	// named is the newest exec with that name.
	named string
}

func matchesWithin(tx *store.Tx, sandboxID, ref string) (m matches) {
	var newest uint64
	for after, more := "", true; more; {
		page := tx.ExecIDs(sandboxID, after, loadPage)
		for _, id := range page {
			after = id
			if id == ref {
				return matches{exact: true, first: id}
			}
			if strings.HasPrefix(id, ref) {
				if m.fits++; m.fits == 1 {
					m.first = id
				}
			}
			req, err := tx.ExecConfig(sandboxID, id)
			if err != nil || req.GetName() != ref {
				continue // an unreadable one has no name
			}
			if ev, err := tx.ExecLastEvent(sandboxID, id); err == nil && ev.GetSequence() >= newest {
				newest, m.named = ev.GetSequence(), id
			}
		}
		more = len(page) == loadPage
	}
	return m
}

func (l *Ledger) findRunning(ref string) (sandboxID, execID string, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if r, ok := l.running[ref]; ok {
		return r.sandboxID, ref, nil
	}
	for _, sb := range l.sandboxes {
		for _, e := range sb.Execs {
			if e.Name != ref {
				continue
			}
			if execID != "" {
				return "", "", execAmbiguous(ref)
			}
			sandboxID, execID = sb.ID, e.ID
		}
	}
	return sandboxID, execID, nil
}

func execNotFound(ref string) error {
	return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_EXEC_NOT_FOUND,
		"There is no exec %q; \"agbox ps -a SANDBOX\" shows those of a sandbox.", ref).With("exec_id", ref)
}

func execAmbiguous(ref string) error {
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_EXEC_AMBIGUOUS,
		"%q fits several execs: give more of the id, or SANDBOX/NAME.", ref).With("exec_id", ref)
}
