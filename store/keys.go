package store

import (
	"math"

	"github.com/agbox/agbox/internal/ids"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// PutSandboxKey records the request key of a sandbox and the digest of its request.
func (t *Tx) PutSandboxKey(sandboxID, key string, digest []byte) error {
	if !ids.Valid(sandboxID) {
		return invalidID("sandbox", sandboxID)
	}
	if err := t.put(bucketSandboxKeys, []byte(key), []byte(sandboxID)); err != nil {
		return err
	}
	return t.putMessage(bucketSandboxRequests, []byte(sandboxID), &storev1.Request{Key: key, Digest: digest})
}

// SandboxOfKey returns the id of the sandbox that was created with a request key; empty
// if there is none.
func (t *Tx) SandboxOfKey(key string) (sandboxID string) {
	return string(t.get(bucketSandboxKeys, []byte(key)))
}

// SandboxRequestDigest returns the digest of the request with a key that created a
// sandbox; nil if there was none or its record is damaged.
func (t *Tx) SandboxRequestDigest(sandboxID string) []byte {
	return t.sandboxRequest(sandboxID).GetDigest()
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

// PutExecKey records the request key of an exec. Its request, which PutExecConfig
// stores, has the key too.
func (t *Tx) PutExecKey(execID, key string) error {
	if !ids.Valid(execID) {
		return invalidID("exec", execID)
	}
	return t.put(bucketExecKeys, []byte(key), []byte(execID))
}

// ExecOfKey returns the id of the exec that was created with a request key; empty if
// there is none.
func (t *Tx) ExecOfKey(key string) (execID string) {
	return string(t.get(bucketExecKeys, []byte(key)))
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
