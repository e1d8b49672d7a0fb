package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// hideSecrets is the migration to schema 2. Deleted sandboxes lose their secrets. Free pages
// can have those of sandboxes whose records are gone, too.
func hideSecrets(t *Tx) error {
	t.rewrite, t.unframed = true, true
	defer func() { t.unframed = false }()
	for _, id := range t.SandboxIDs() {
		spec, err := t.SandboxConfig(id)
		if err != nil {
			continue // an unreadable record stays as it is
		}
		_, hidden := secrets.HideSpec(spec)
		if err := t.hideExecs(id); err != nil {
			return err
		}
		if hidden == nil {
			continue
		}
		if err := t.hideSandbox(id, spec); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tx) hideSandbox(id string, spec *agboxv1.CreateSpec) error {
	request := t.sandboxRequest(id)
	if _, deleted := t.DeletedAt(id); deleted {
		shown, _ := secrets.HideSpec(spec)
		if request != nil {
			request.Keyed, request.Digest = true, nil
		}
		return errors.Join(t.putMessage(bucketSandboxConfig, []byte(id), shown), t.putRequest(id, request))
	}
	if err := t.secretKeys.Make(id); err != nil {
		return err
	}
	if err := t.PutSandboxConfig(id, spec); err != nil || request == nil {
		return err
	}
	return t.PutSandboxKey(id, request.GetKey(), request.GetDigest())
}

// hideExecs is the part of hideSecrets for the execs of a sandbox.
func (t *Tx) hideExecs(sandboxID string) error {
	_, deleted := t.DeletedAt(sandboxID)
	for _, id := range t.ExecIDs(sandboxID, "", math.MaxInt) {
		request, err := t.ExecConfig(sandboxID, id)
		if err != nil {
			continue
		}
		shown, hidden := secrets.HideExec(request)
		if hidden == nil {
			continue
		}
		if deleted {
			err = t.putMessage(bucketExecConfig(sandboxID), []byte(id), shown)
		} else if err = t.secretKeys.Make(sandboxID); err == nil {
			err = t.PutExecConfig(sandboxID, id, request)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rewrite replaces a database, which was opened from the file seen, by a copy without its
// free pages, and opens the copy. If no copy can be made, for example because the disk is
// full, it returns db, and the next opening tries again. After an error, nothing is open.
func rewrite(o Options, db *bolt.DB, seen fs.FileInfo) (*bolt.DB, error) {
	failed := runSteps(publishSteps(o.Path, func(temp string) error { return copyPages(o, db, temp) }))
	now, err := os.Stat(o.Path)
	if failed != nil && err == nil && os.SameFile(now, seen) {
		o.Logger.Warn("the free pages of the database may still have secrets in plain text; the next start tries again to write it anew",
			"path", o.Path, "error", failed)
		return db, nil
	}
	if err := errors.Join(failed, err, db.Close()); err != nil {
		return nil, err
	}
	return openSeen(o, now)
}

// compactBatch bounds a transaction of a copy, in bytes.
const compactBatch = 16 << 20

// copyPages copies a database into a new file, without its free pages.
func copyPages(o Options, db *bolt.DB, temp string) error {
	fresh, err := bolt.Open(temp, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, Timeout: o.LockTimeout})
	if err != nil {
		return err
	}
	err = bolt.Compact(fresh, db, compactBatch)
	if err == nil {
		err = fresh.Update(func(b *bolt.Tx) error {
			meta, err := readMeta(b)
			if err != nil {
				return err
			}
			meta.Rewrite = false
			return putMeta(b, meta)
		})
	}
	return errors.Join(err, fresh.Close())
}
