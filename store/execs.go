package store

import (
	"bytes"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ReserveExec reserves the exec id for ever. Exec ids are unique across all
// sandboxes. If the id was reserved before, the error is a fault EXEC_ID_ALREADY_EXISTS
// that wraps ErrReserved.
func (t *Tx) ReserveExec(execID string, now time.Time) error {
	if !ids.Valid(execID) {
		return invalidID("exec", execID)
	}
	if t.get(bucketExecIDs, []byte(execID)) != nil {
		return reserved("exec", execID, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS)
	}
	return t.put(bucketExecIDs, []byte(execID), instant(now))
}

// ExecReserved reports whether and when the id was reserved. If the record is
// damaged, the id still counts as reserved and the time is zero.
func (t *Tx) ExecReserved(execID string) (at time.Time, ok bool) {
	raw := t.get(bucketExecIDs, []byte(execID))
	return parseInstant(raw), raw != nil
}

// PutExecConfig stores the request as it was accepted, and its secrets apart. For
// secrets, the sandbox must have a key.
func (t *Tx) PutExecConfig(sandboxID, execID string, request *agboxv1.CreateExecRequest) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if !ids.Valid(execID) {
		return invalidID("exec", execID)
	}
	shown, hidden := secrets.HideExec(request)
	if err := t.seal(bucketExecSecrets(sandboxID), []byte(execID), sandboxID, aboutExec(sandboxID, execID), hidden); err != nil {
		return err
	}
	return t.putMessage(bucketExecConfig(sandboxID), []byte(execID), shown)
}

// ExecConfig returns the request without secrets, errdefs.ErrNotFound or a *RecordError.
func (t *Tx) ExecConfig(sandboxID, execID string) (*agboxv1.CreateExecRequest, error) {
	request := &agboxv1.CreateExecRequest{}
	if err := t.message(bucketExecConfig(sandboxID), []byte(execID), request); err != nil {
		return nil, err
	}
	return request, nil
}

// ExecIDs lists up to limit exec ids of a sandbox, in byte order, starting after
// the given one; "" starts at the beginning.
func (t *Tx) ExecIDs(sandboxID, after string, limit int) []string {
	return t.keys(bucketExecConfig(sandboxID), after, limit)
}

// HasExec reports whether the request of an exec is stored with a sandbox.
func (t *Tx) HasExec(sandboxID, execID string) bool {
	return t.get(bucketExecConfig(sandboxID), []byte(execID)) != nil
}

// ForEachExecID calls fn for each exec that has a config, sandbox by sandbox. It
// stops at fn's first error and returns it.
func (t *Tx) ForEachExecID(fn func(sandboxID, execID string) error) error {
	return t.forEachExecBucket(func(sandboxID string, b *bolt.Bucket) error {
		return b.ForEach(func(k, _ []byte) error { return fn(sandboxID, string(k)) })
	})
}

// ExecSandbox finds the sandbox of an exec. It searches the sandboxes one by
// one; for many look-ups, build a map with ForEachExecID.
func (t *Tx) ExecSandbox(execID string) (sandboxID string, ok bool) {
	_ = t.forEachExecBucket(func(id string, b *bolt.Bucket) error { // ErrReserved only ends the search
		if b.Get([]byte(execID)) == nil {
			return nil
		}
		sandboxID, ok = id, true
		return ErrReserved
	})
	return sandboxID, ok
}

func (t *Tx) forEachExecBucket(fn func(sandboxID string, b *bolt.Bucket) error) error {
	prefix := []byte(prefixExecConfig)
	c := t.bolt.Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Next() {
		sandboxID := strings.TrimPrefix(string(k), prefixExecConfig)
		if err := fn(sandboxID, t.bolt.Bucket(k)); err != nil {
			return err
		}
	}
	return nil
}

// ExecLastEvent returns the newest event of an exec, errdefs.ErrNotFound or a
// *RecordError.
func (t *Tx) ExecLastEvent(sandboxID, execID string) (*agboxv1.SandboxEvent, error) {
	bucket := bucketExecLastEvent(sandboxID)
	raw := t.get(bucket, []byte(execID))
	if raw == nil {
		return nil, notFound("event of exec", execID)
	}
	sequence, ok := parseNumber(raw)
	if !ok {
		return nil, &RecordError{Bucket: string(bucket), Key: execID, Err: isNumber(raw)}
	}
	return t.Event(sandboxID, sequence)
}
