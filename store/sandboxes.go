package store

import (
	"math"
	"time"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ReserveSandbox reserves the sandbox id for ever. If the id was reserved
// before, the error is a fault SANDBOX_ID_ALREADY_EXISTS that wraps ErrReserved.
func (t *Tx) ReserveSandbox(sandboxID string, now time.Time) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if t.get(bucketSandboxIDs, []byte(sandboxID)) != nil {
		return reserved("sandbox", sandboxID, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
	}
	return t.put(bucketSandboxIDs, []byte(sandboxID), instant(now))
}

// SandboxReserved reports whether and when the id was reserved. If the record is
// damaged, the id still counts as reserved and the time is zero.
func (t *Tx) SandboxReserved(sandboxID string) (at time.Time, ok bool) {
	raw := t.get(bucketSandboxIDs, []byte(sandboxID))
	return parseInstant(raw), raw != nil
}

// PutSandboxConfig stores the resolved spec, and its secrets apart. For secrets, the
// sandbox must have a key.
func (t *Tx) PutSandboxConfig(sandboxID string, spec *agboxv1.CreateSpec) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	shown, hidden := secrets.HideSpec(spec)
	if err := t.seal(bucketSandboxSecrets, []byte(sandboxID), sandboxID, aboutSandbox(sandboxID), hidden); err != nil {
		return err
	}
	return t.putMessage(bucketSandboxConfig, []byte(sandboxID), shown)
}

// SandboxConfig returns the spec without secrets, errdefs.ErrNotFound or a *RecordError.
func (t *Tx) SandboxConfig(sandboxID string) (*agboxv1.CreateSpec, error) {
	spec := &agboxv1.CreateSpec{}
	if err := t.message(bucketSandboxConfig, []byte(sandboxID), spec); err != nil {
		return nil, err
	}
	return spec, nil
}

// SandboxIDs lists all sandboxes that have a config, including deleted ones, in
// byte order. It decodes no records.
func (t *Tx) SandboxIDs() []string { return t.keys(bucketSandboxConfig, "", math.MaxInt) }

// MarkDeleted records when the sandbox was deleted. It does not change a time
// that is already recorded.
func (t *Tx) MarkDeleted(sandboxID string, now time.Time) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if t.get(bucketSandboxDeleted, []byte(sandboxID)) != nil {
		return nil
	}
	return t.put(bucketSandboxDeleted, []byte(sandboxID), instant(now))
}

// DeletedAt reports whether and when the sandbox was deleted. The time is zero
// if its record is damaged.
func (t *Tx) DeletedAt(sandboxID string) (at time.Time, ok bool) {
	raw := t.get(bucketSandboxDeleted, []byte(sandboxID))
	return parseInstant(raw), raw != nil
}
