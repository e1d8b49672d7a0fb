package store

import (
	"bytes"
	"crypto/hmac"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// ReserveSandbox reserves the sandbox id for ever. If the id was reserved
// before, the error is a fault SANDBOX_ID_ALREADY_EXISTS that wraps ErrReserved.
func (t *Tx) ReserveSandbox(sandboxID string, now time.Time) error {
	return t.reserve(bucketSandboxIDs, "sandbox", sandboxID, now, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
}

func (t *Tx) reserve(bucket []byte, of, id string, now time.Time, taken agboxv1.ErrorReason) error {
	if !ids.Valid(id) {
		return invalidID(of, id)
	}
	if t.get(bucket, []byte(id)) != nil {
		return reserved(of, id, taken)
	}
	return t.put(bucket, []byte(id), instant(now))
}

// SandboxReserved reports whether and when the id was reserved. If the record is
// damaged, the id still counts as reserved and the time is zero.
func (t *Tx) SandboxReserved(sandboxID string) (at time.Time, ok bool) {
	return t.instant(bucketSandboxIDs, sandboxID)
}

func (t *Tx) instant(bucket []byte, id string) (at time.Time, ok bool) {
	raw := t.get(bucket, []byte(id))
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

// SameSandboxConfig reports whether a spec with its values is the stored one. Without the
// key of the sandbox, only what is not secret is compared.
func (t *Tx) SameSandboxConfig(sandboxID string, spec *agboxv1.CreateSpec) (bool, error) {
	stored, err := t.SandboxConfig(sandboxID)
	if err != nil {
		return false, err
	}
	shown, hidden := secrets.HideSpec(spec)
	if !proto.Equal(stored, shown) {
		return false, nil
	}
	values, err := t.SandboxSecrets(sandboxID)
	return sameSecrets(values, hidden, err)
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
	return t.instant(bucketSandboxDeleted, sandboxID)
}

// DropSandbox removes everything of a sandbox except the reservations of its id
// and of its execs' ids. Its cost grows with the number of the sandbox's events,
// so remove most of them with RemoveEvents first.
func (t *Tx) DropSandbox(sandboxID string) error {
	return errors.Join(
		t.forgetExecKeys(sandboxID),
		t.forgetSandboxKey(sandboxID),
		t.EraseSecrets(sandboxID),
		sandboxEvents.drop(t, sandboxID),
		t.drop(bucketExecConfig(sandboxID)),
		t.drop(bucketExecLastEvent(sandboxID)),
		t.remove(bucketSandboxConfig, []byte(sandboxID)),
		t.remove(bucketSandboxDeleted, []byte(sandboxID)))
}

// PutSandboxKey records the request key of a sandbox and the digest of its request. The
// config of the sandbox must be stored before.
func (t *Tx) PutSandboxKey(sandboxID, key string, digest []byte) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if err := t.putFramed(bucketSandboxKeys, []byte(key), []byte(sandboxID)); err != nil {
		return err
	}
	request := &storev1.Request{Key: key, Digest: digest}
	if t.get(bucketSandboxSecrets, []byte(sandboxID)) != nil {
		k, err := t.secretKeys.Get(sandboxID)
		if err != nil {
			return err
		}
		request.Keyed, request.Digest = true, k.Sum(digest)
	}
	return t.putRequest(sandboxID, request)
}

func (t *Tx) putRequest(sandboxID string, request *storev1.Request) error {
	if request == nil {
		return nil
	}
	return t.putMessage(bucketSandboxRequests, []byte(sandboxID), request)
}

// SandboxOfKey returns the id of the sandbox that was created with a request key; empty
// if there is none.
func (t *Tx) SandboxOfKey(key string) (sandboxID string) {
	return t.ownerOf(bucketSandboxKeys, key)
}

// ownerOf returns what a request key has created; empty if it has created nothing, or the
// record is damaged.
func (t *Tx) ownerOf(bucket []byte, key string) (id string) {
	owner := new(storev1.KeyOwner)
	if t.message(bucket, []byte(key), owner) != nil {
		return ""
	}
	return owner.GetId()
}

// SameSandboxRequest reports whether a request with a key has created a sandbox. It is
// false if the record is damaged. If the sandbox had secrets and its key is gone, as
// after its removal, the request key alone decides. The error is a fault
// SECRETS_UNREADABLE.
func (t *Tx) SameSandboxRequest(sandboxID string, digest []byte) (bool, error) {
	request := t.sandboxRequest(sandboxID)
	if !request.GetKeyed() {
		return bytes.Equal(request.GetDigest(), digest), nil
	}
	k, err := t.secretKeys.Get(sandboxID)
	if errors.Is(err, secrets.ErrNoKey) {
		return true, nil
	}
	return err == nil && hmac.Equal(request.GetDigest(), k.Sum(digest)), err
}

func (t *Tx) sandboxRequest(sandboxID string) *storev1.Request {
	m := new(storev1.Request)
	if t.message(bucketSandboxRequests, []byte(sandboxID), m) != nil {
		return nil
	}
	return m
}

// forgetSandboxKey removes what PutSandboxKey has recorded.
func (t *Tx) forgetSandboxKey(sandboxID string) error {
	if key := t.sandboxRequest(sandboxID).GetKey(); key != "" {
		if err := t.remove(bucketSandboxKeys, []byte(key)); err != nil {
			return err
		}
	}
	return t.remove(bucketSandboxRequests, []byte(sandboxID))
}

// ReserveExec reserves the exec id for ever. Exec ids are unique across all
// sandboxes. If the id was reserved before, the error is a fault EXEC_ID_ALREADY_EXISTS
// that wraps ErrReserved.
func (t *Tx) ReserveExec(execID string, now time.Time) error {
	return t.reserve(bucketExecIDs, "exec", execID, now, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS)
}

// ExecReserved reports whether and when the id was reserved. If the record is
// damaged, the id still counts as reserved and the time is zero.
func (t *Tx) ExecReserved(execID string) (at time.Time, ok bool) {
	return t.instant(bucketExecIDs, execID)
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

// SameExecConfig reports whether a request with its values is the stored one. Without the
// key of the sandbox, only what is not secret is compared. How output is shown does not
// count: earlier versions stored nothing about it.
func (t *Tx) SameExecConfig(sandboxID, execID string, request *agboxv1.CreateExecRequest) (bool, error) {
	stored, err := t.ExecConfig(sandboxID, execID)
	if err != nil {
		return false, err
	}
	shown, hidden := secrets.HideExec(request)
	stored, shown = proto.CloneOf(stored), proto.CloneOf(shown)
	stored.ShowSecrets, shown.ShowSecrets = false, false
	if !proto.Equal(stored, shown) {
		return false, nil
	}
	values, err := t.ExecSecrets(sandboxID, execID)
	return sameSecrets(values, hidden, err)
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

// KeptExec is an exec that is still stored, with its sandbox.
type KeptExec struct{ SandboxID, ExecID string }

// ExecsWithPrefix lists up to limit stored execs whose ids begin with prefix, in
// byte order, so an id equal to prefix comes first. It searches every sandbox that is not hidden.
func (t *Tx) ExecsWithPrefix(prefix string, limit int, hidden func(sandboxID string) bool) []KeptExec {
	var found []KeptExec
	_ = t.forEachExecBucket(func(sandboxID string, b *bolt.Bucket) error { // the function returns no error
		if hidden(sandboxID) {
			return nil
		}
		c := b.Cursor()
		taken := 0
		for k, _ := c.Seek([]byte(prefix)); k != nil && bytes.HasPrefix(k, []byte(prefix)) && taken < limit; k, _ = c.Next() {
			found = append(found, KeptExec{sandboxID, string(k)})
			taken++
		}
		return nil
	})
	slices.SortFunc(found, func(a, b KeptExec) int { return strings.Compare(a.ExecID, b.ExecID) })
	return found[:min(len(found), limit)]
}

// PutExecKey records the request key of an exec. Its request, which PutExecConfig stores,
// has the key too. A key that is the id of its exec, as most are, needs no entry in the
// index of keys, which would cost a page or two of each write.
func (t *Tx) PutExecKey(execID, key string) error {
	if !ids.Valid(execID) {
		return invalidID("exec", execID)
	}
	if key == execID {
		return nil
	}
	return t.putFramed(bucketExecKeys, []byte(key), []byte(execID))
}

// ExecOfKey returns the id of the exec that was created with a request key; empty if
// there is none.
func (t *Tx) ExecOfKey(key string) (execID string) {
	if id := t.ownerOf(bucketExecKeys, key); id != "" {
		return id
	}
	if _, reserved := t.ExecReserved(key); !reserved {
		return ""
	}
	// An exec has that id. Was it its key too? The sandbox is not known here, but only a
	// repeated request gets so far.
	for _, sandboxID := range t.SandboxIDs() {
		if request, err := t.ExecConfig(sandboxID, key); err == nil && request.GetRequestKey() == key {
			return key
		}
	}
	return ""
}

// ForgetExecs removes the configs of execs, their request keys and their entries in the index of
// newest events. Their ids stay reserved. RemoveEvents removes their events.
func (t *Tx) ForgetExecs(sandboxID string, execIDs ...string) error {
	for _, id := range execIDs {
		err := errors.Join(
			t.forgetExecKey(sandboxID, id),
			t.remove(bucketExecConfig(sandboxID), []byte(id)),
			t.remove(bucketExecSecrets(sandboxID), []byte(id)),
			t.remove(bucketExecLastEvent(sandboxID), []byte(id)))
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetExecKeys is forgetExecKey for all execs of a sandbox.
func (t *Tx) forgetExecKeys(sandboxID string) error {
	for _, id := range t.ExecIDs(sandboxID, "", math.MaxInt) {
		if err := t.forgetExecKey(sandboxID, id); err != nil {
			return err
		}
	}
	return nil
}

// forgetExecKey removes the key of an exec, whose request must still be there.
func (t *Tx) forgetExecKey(sandboxID, execID string) error {
	request, err := t.ExecConfig(sandboxID, execID)
	if err != nil || request.GetRequestKey() == "" {
		return nil // without a readable request its key is unknown
	}
	return t.remove(bucketExecKeys, []byte(request.GetRequestKey()))
}
