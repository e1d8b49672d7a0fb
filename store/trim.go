package store

import (
	"errors"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// RemoveExec forgets execs of a sandbox: configs and events. Their ids stay
// reserved, and the sandbox's newest event stays, because the next sequence follows
// from it. It reads the sandbox's history and the order of all events once, so
// many execs in one call cost what one costs.
func (t *Tx) RemoveExec(sandboxID string, execIDs ...string) error {
	gone := make(map[string]bool, len(execIDs))
	for _, id := range execIDs {
		gone[id] = true
		err := errors.Join(
			t.remove(bucketExecConfig(sandboxID), []byte(id)),
			t.remove(bucketExecLastEvent(sandboxID), []byte(id)))
		if err != nil {
			return err
		}
	}
	newest := t.LastSequence(sandboxID)
	sequences := make(map[uint64]bool)
	t.eachNumber(bucketEvents(sandboxID), 0, func(sequence uint64, _, raw []byte) bool {
		ev := &agboxv1.SandboxEvent{}
		if sequence != newest && proto.Unmarshal(raw, ev) == nil && gone[ev.GetExec().GetExecId()] {
			sequences[sequence] = true
		}
		return true
	})
	for sequence := range sequences {
		if err := t.remove(bucketEvents(sandboxID), number(sequence)); err != nil {
			return err
		}
	}
	return t.forgetOrder(sandboxID, func(sequence uint64) bool { return sequences[sequence] })
}

// DropSandbox forgets all of a sandbox but that its id and those of its execs
// are taken. It reads the order of all events once.
func (t *Tx) DropSandbox(sandboxID string) error {
	err := errors.Join(
		t.drop(bucketEvents(sandboxID)),
		t.drop(bucketExecConfig(sandboxID)),
		t.drop(bucketExecLastEvent(sandboxID)),
		t.remove(bucketSandboxConfig, []byte(sandboxID)),
		t.remove(bucketSandboxDeleted, []byte(sandboxID)))
	if err != nil {
		return err
	}
	return t.forgetOrder(sandboxID, func(uint64) bool { return true })
}

// forgetOrder removes a sandbox's entries from the order of all events.
func (t *Tx) forgetOrder(sandboxID string, gone func(sequence uint64) bool) error {
	var keys [][]byte // a bbolt cursor must not walk what is being removed
	t.eachNumber(bucketEventOrder, 0, func(position uint64, _, raw []byte) bool {
		ref := &storev1.EventRef{}
		if proto.Unmarshal(raw, ref) == nil && ref.GetSandboxId() == sandboxID && gone(ref.GetSequence()) {
			keys = append(keys, number(position))
		}
		return true
	})
	for _, k := range keys {
		if err := t.remove(bucketEventOrder, k); err != nil {
			return err
		}
	}
	return nil
}
