package store

import (
	"errors"
	"fmt"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/secrets"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// The values of secret variables are in records of their own, encrypted with the key of
// their sandbox. The config of the sandbox or exec has a placeholder instead. So whoever
// reads configs, for example to show them, never has a value to leak.
//
// bbolt keeps old bytes in free pages. That is harmless: they are encrypted too, and the
// key of a removed sandbox is gone.

// keysBeside is the directory of the keys, beside the database.
const keysBeside = "secret-keys"

func keysOf(database string) secrets.Keys {
	return secrets.NewKeys(filepath.Join(filepath.Dir(database), keysBeside))
}

// Keys are the keys of the sandboxes with secrets. Make the key of a sandbox before the
// transaction that stores its first secrets.
func (s *Store) Keys() secrets.Keys { return s.keys }

// Additional data of the encryption: a record cannot take the place of another one.
func aboutSandbox(sandboxID string) string      { return "sandbox " + sandboxID }
func aboutExec(sandboxID, execID string) string { return "exec " + sandboxID + " " + execID }

// seal encrypts values into a record. Without values it removes the record.
func (t *Tx) seal(bucket, key []byte, sandboxID, about string, values *storev1.Secrets) error {
	if values == nil {
		return t.remove(bucket, key)
	}
	k, err := t.secretKeys.Get(sandboxID)
	if err != nil {
		return err
	}
	raw, err := deterministic.Marshal(values)
	if err != nil {
		return fmt.Errorf("encode %s for %s: %w", keyText(key), bucket, err)
	}
	return t.putFramed(bucket, key, k.Seal(raw, about))
}

// unseal decrypts a record; nil if there is none. The error is a fault
// SECRETS_UNREADABLE.
func (t *Tx) unseal(bucket, key []byte, sandboxID, about string) (*storev1.Secrets, error) {
	if t.get(bucket, key) == nil {
		return nil, nil
	}
	k, err := t.secretKeys.Get(sandboxID)
	if err != nil {
		return nil, err
	}
	sealed, values := new(storev1.Sealed), new(storev1.Secrets)
	if err := t.message(bucket, key, sealed); err != nil {
		return nil, secrets.Unreadable(sandboxID, err)
	}
	raw, err := k.Open(sealed.GetBox(), about)
	if err == nil {
		err = proto.Unmarshal(raw, values)
	}
	if err != nil {
		return nil, secrets.Unreadable(sandboxID, err)
	}
	return values, nil
}

// SandboxSecrets returns the values that the config of a sandbox hides; nil if there are
// none. The error is a fault SECRETS_UNREADABLE.
func (t *Tx) SandboxSecrets(sandboxID string) (*storev1.Secrets, error) {
	return t.unseal(bucketSandboxSecrets, []byte(sandboxID), sandboxID, aboutSandbox(sandboxID))
}

// ExecSecrets returns the values that the config of an exec hides; nil if there are none.
// The error is a fault SECRETS_UNREADABLE.
func (t *Tx) ExecSecrets(sandboxID, execID string) (*storev1.Secrets, error) {
	return t.unseal(bucketExecSecrets(sandboxID), []byte(execID), sandboxID, aboutExec(sandboxID, execID))
}

// HasSecrets reports whether a sandbox or one of its execs has secrets.
func (t *Tx) HasSecrets(sandboxID string) bool {
	return t.get(bucketSandboxSecrets, []byte(sandboxID)) != nil || t.bolt.Bucket(bucketExecSecrets(sandboxID)) != nil
}

func sameSecrets(stored, given *storev1.Secrets, err error) (bool, error) {
	if errors.Is(err, secrets.ErrNoKey) {
		return true, nil
	}
	return err == nil && proto.Equal(stored, given), err
}

// EraseSecrets removes the secrets of a sandbox and of its execs. Erase its key too: free
// pages of the file keep what was removed.
func (t *Tx) EraseSecrets(sandboxID string) error {
	return errors.Join(t.remove(bucketSandboxSecrets, []byte(sandboxID)), t.drop(bucketExecSecrets(sandboxID)))
}
