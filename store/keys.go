package store

import (
	"bytes"
	"crypto/hmac"
	"errors"
	"math"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

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

// forgetExecKey removes the key of an exec, whose request must still be there.
func (t *Tx) forgetExecKey(sandboxID, execID string) error {
	request, err := t.ExecConfig(sandboxID, execID)
	if err != nil || request.GetRequestKey() == "" {
		return nil // without a readable request its key is unknown
	}
	return t.remove(bucketExecKeys, []byte(request.GetRequestKey()))
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
