package ledger

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// pageBytes bounds the memory of one page of events.
const pageBytes = 1 << 20

// Events returns the next events of a sandbox after a sequence, at most limit.
func (l *Ledger) Events(ctx context.Context, sandboxID string, after uint64, limit int) (store.EventPage, error) {
	var page store.EventPage
	err := l.store.View(ctx, func(tx *store.Tx) error {
		page = tx.Events(sandboxID, after, limit, pageBytes)
		return nil
	})
	return page, err
}

// FindSandbox resolves an id, a name or a unique prefix of an id, in this order.
// Deleted sandboxes are found by id or prefix.
func (l *Ledger) FindSandbox(ctx context.Context, ref string) (Sandbox, error) {
	if sb, ok := l.Sandbox(ref); ok {
		return sb, nil
	}
	l.mu.RLock()
	named, ok := l.sandboxes[l.names[ref]]
	var fits []Sandbox
	if !ok {
		for id, sb := range l.sandboxes {
			if strings.HasPrefix(id, ref) {
				fits = append(fits, sb)
			}
		}
	}
	l.mu.RUnlock()
	switch {
	case ok:
		return named, nil
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return Sandbox{}, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_SANDBOX_AMBIGUOUS,
			"%q fits %d sandboxes: give more of the id.", ref, len(fits)).With("sandbox_id", ref)
	}
	return l.Past(ctx, ref)
}

// FindExec resolves an id, the name of a running exec or a unique prefix of an
// id, in this order.
func (l *Ledger) FindExec(ctx context.Context, ref string) (sandboxID, execID string, err error) {
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
		"%q fits several execs: give more of the id.", ref).With("exec_id", ref)
}
