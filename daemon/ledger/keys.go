package ledger

import (
	"context"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

// RequestKey makes a request to create a sandbox repeatable.
type RequestKey struct {
	// Key is chosen by the caller; empty means that the request cannot be repeated.
	Key string
	// Digest is that of the whole request.
	Digest []byte
}

// RepeatedCreate returns the sandbox that the same request with the same key has created.
// again is false if there is none, or if only a comparison of the specs can tell. The
// error is REQUEST_KEY_REUSED if the key belongs to a sandbox with another id.
func (l *Ledger) RepeatedCreate(ctx context.Context, id string, key RequestKey) (sb Sandbox, again bool, err error) {
	if key.Key == "" {
		return sb, false, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) (err error) {
		of := tx.SandboxOfKey(key.Key)
		if of != "" && of != id {
			return keyReused(key.Key).With("sandbox_id", of)
		}
		if of == id {
			again, err = tx.SameSandboxRequest(id, key.Digest)
		}
		return err
	})
	if err != nil || !again {
		return sb, false, err
	}
	if living, ok := l.Sandbox(id); ok {
		return living, true, nil
	}
	sb, err = l.Past(ctx, id)
	return sb, err == nil, err
}

// sameRequest handles a create whose id is taken. It accepts a repetition of the same
// request with the same key and refuses any other one.
func (t *txn) sameRequest(id string, spec *agboxv1.CreateSpec, key RequestKey) error {
	if key.Key == "" || t.tx.SandboxOfKey(key.Key) != id {
		return sandboxIDTaken(id)
	}
	same, err := t.tx.SameSandboxRequest(id, key.Digest)
	if err == nil && !same {
		same, err = t.tx.SameSandboxConfig(id, spec)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	switch {
	case same && t.sb.Exists():
		return errNothing
	case same || key.Key == id:
		return sandboxIDTaken(id)
	}
	return keyReused(key.Key).With("sandbox_id", id)
}

func sandboxIDTaken(id string) error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS,
		"The id %q was used before, and ids are never reused; choose another or leave it out.", id).With("sandbox_id", id)
}

func keyReused(key string) *fault.Error {
	return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_REQUEST_KEY_REUSED,
		"The request key %.80q was used by another request; give every request its own key.", key)
}

// RepeatedExec reports whether the same request with the same key was accepted before.
func (l *Ledger) RepeatedExec(ctx context.Context, req *agboxv1.CreateExecRequest) (again bool, err error) {
	if req.GetRequestKey() == "" {
		return false, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		if tx.ExecOfKey(req.GetRequestKey()) != req.GetExecId() {
			return nil
		}
		again, _ = tx.SameExecConfig(req.GetSandboxId(), req.GetExecId(), req) // an unreadable one is compared again by AcceptExec
		return nil
	})
	return again, err
}

// checkExecKey refuses a key that belongs to another exec.
func (t *txn) checkExecKey(req *agboxv1.CreateExecRequest) error {
	if req.GetRequestKey() == "" {
		return nil
	}
	if of := t.tx.ExecOfKey(req.GetRequestKey()); of != "" && of != req.GetExecId() {
		return keyReused(req.GetRequestKey()).With("exec_id", of)
	}
	return nil
}

// sameExec handles a create whose id is taken. It accepts a repetition of the same
// request with the same key and refuses any other one.
func (t *txn) sameExec(req *agboxv1.CreateExecRequest) error {
	key, id := req.GetRequestKey(), req.GetExecId()
	if key == "" || t.tx.ExecOfKey(key) != id {
		return execIDTaken(id)
	}
	same, err := t.tx.SameExecConfig(req.GetSandboxId(), id, req)
	switch {
	case same:
		return errNothing
	case err != nil && !errdefs.IsNotFound(err):
		return err
	case key == id:
		return execIDTaken(id)
	}
	return keyReused(key).With("exec_id", id)
}
