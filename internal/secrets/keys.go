package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ErrNoKey means that a sandbox has no key: it never had secrets, it was removed, or its
// key file is lost.
var ErrNoKey = errors.New("no key")

// Keys is the directory with the keys: one file of 32 random bytes per sandbox that has
// secrets, named by its id, which only the daemon's user can read. The keys are not in the
// database, so a copy of the database alone tells no secret, and removing the file of a
// sandbox makes every copy of its secrets in the database unreadable.
type Keys struct {
	dir      string
	sweeping *sweeping
}

// sweeping is what Sweep knows, for all copies of a Keys.
type sweeping struct {
	// Held across I/O: that a key is old and its removal, or that it exists and its new time, are
	// one step. Neither waits for anybody.
	mu sync.Mutex
	// unsure has the names of files that may not be needed. It is nil before the first sweep,
	// which looks at all.
	unsure map[string]struct{}
}

// madeLocked says that a key was made, so the next sweep looks at it.
func (s *sweeping) madeLocked(name string) {
	if s.unsure != nil {
		s.unsure[name] = struct{}{}
	}
}

// NewKeys returns the keys in a directory. The first key makes it.
func NewKeys(dir string) Keys { return Keys{dir: dir, sweeping: new(sweeping)} }

func (k Keys) file(sandboxID string) string { return filepath.Join(k.dir, sandboxID) }

// Get returns the key of a sandbox. Its errors are faults SECRETS_UNREADABLE; one for a
// missing key wraps ErrNoKey.
func (k Keys) Get(sandboxID string) (*Key, error) {
	raw, err := k.read(sandboxID)
	if err != nil {
		return nil, Unreadable(sandboxID, err)
	}
	return newKey(raw)
}

// Unreadable is the error for secrets of a sandbox that cannot be decrypted.
func Unreadable(sandboxID string, cause error) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SECRETS_UNREADABLE,
		"The secret variables of sandbox %s cannot be decrypted: %v. Put its key file back, for example from a backup. "+
			"What runs in the sandbox keeps its variables; containers and commands that need them cannot be made.", sandboxID, cause).
		Because(cause).With("sandbox_id", sandboxID)
}

// read returns the content of a key file, which must be a regular file of this user that
// nobody else can read.
func (k Keys) read(sandboxID string) ([]byte, error) {
	if !ids.Valid(sandboxID) {
		return nil, fmt.Errorf("%q is no id: %w", sandboxID, ErrNoKey)
	}
	path := k.file(sandboxID)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is %w in %s", ErrNoKey, path)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file", path)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to user %d instead of %d", path, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("others may use %s: its mode is %04o instead of 0600", path, st.Mode&0o7777)
	case st.Size != keySize:
		return nil, fmt.Errorf("%s has %d bytes instead of %d", path, st.Size, keySize)
	}
	raw := make([]byte, keySize)
	if _, err := io.ReadFull(f, raw); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return raw, nil
}

// Make makes the key of a sandbox if it has none. When it returns, the key is on the disk.
// A key that exists must be readable, and counts as made now.
func (k Keys) Make(sandboxID string) error {
	err := k.renew(sandboxID)
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrNoKey) || !ids.Valid(sandboxID) {
		return Unreadable(sandboxID, err)
	}
	if err := k.make(sandboxID); err != nil {
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_STORE_FAILED,
			"The key for the secret variables of sandbox %s cannot be written: %v. Nothing was changed. Fix the cause and try again.",
			sandboxID, err).Because(err).With("sandbox_id", sandboxID)
	}
	return nil
}

// renew gives a key that exists a new time: a creation that was refused has left it, and Sweep
// must not remove it before its repetition is done.
func (k Keys) renew(sandboxID string) error {
	k.sweeping.mu.Lock()
	defer k.sweeping.mu.Unlock()
	if _, err := k.read(sandboxID); err != nil {
		return err
	}
	k.sweeping.madeLocked(sandboxID)
	err := os.Chtimes(k.file(sandboxID), time.Time{}, time.Now())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it is erased meanwhile: %w", ErrNoKey)
	}
	return err
}

func (k Keys) make(sandboxID string) (err error) {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(k.dir, tempPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	raw := make([]byte, keySize)
	_, _ = rand.Read(raw) // never fails
	if _, err := f.Write(raw); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// A link, not a rename: a key that another call has made meanwhile stays.
	if err := os.Link(f.Name(), k.file(sandboxID)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	k.sweeping.mu.Lock()
	k.sweeping.madeLocked(sandboxID)
	k.sweeping.mu.Unlock()
	if err := filesystem.SyncDir(k.dir); err != nil {
		return err
	}
	return filesystem.SyncDir(filepath.Dir(k.dir))
}

// tempPrefix begins the name of a key file that is being made. No id begins like this.
const tempPrefix = ".new-"

// Erase removes the key of a sandbox from the disk. Without one it does nothing. The bytes
// are overwritten first, for file systems that write in place.
func (k Keys) Erase(sandboxID string) error {
	if !ids.Valid(sandboxID) {
		return nil
	}
	return k.erase(sandboxID)
}

func (k Keys) erase(name string) error {
	path := k.file(name)
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		_ = overwrite(path) // a file that cannot be overwritten can be removed
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return filesystem.SyncDir(k.dir)
}

func overwrite(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, keySize), 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// Sweep removes the keys that were made before a time and that no sandbox needs, for
// example of a creation that was refused. After the first call it looks only at those that were
// made since and were not needed yet: a key is needed until Erase.
func (k Keys) Sweep(before time.Time, needed func(sandboxID string) bool) error {
	names, err := k.unsure()
	for _, name := range names {
		if ids.Valid(name) && needed(name) {
			k.sweeping.mu.Lock()
			delete(k.sweeping.unsure, name)
			k.sweeping.mu.Unlock()
			continue
		}
		err = errors.Join(err, k.eraseOld(name, before))
	}
	return err
}

// unsure returns the names of files that may not be needed.
func (k Keys) unsure() ([]string, error) {
	k.sweeping.mu.Lock()
	defer k.sweeping.mu.Unlock()
	if k.sweeping.unsure == nil {
		entries, err := os.ReadDir(k.dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		k.sweeping.unsure = make(map[string]struct{})
		for _, e := range entries {
			if ids.Valid(e.Name()) || strings.HasPrefix(e.Name(), tempPrefix) {
				k.sweeping.madeLocked(e.Name())
			}
		}
	}
	return slices.Collect(maps.Keys(k.sweeping.unsure)), nil
}

func (k Keys) eraseOld(name string, before time.Time) error {
	k.sweeping.mu.Lock()
	defer k.sweeping.mu.Unlock()
	info, err := os.Lstat(k.file(name))
	if err == nil && !info.ModTime().Before(before) {
		return nil // used meanwhile
	}
	if err == nil {
		err = k.erase(name)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		delete(k.sweeping.unsure, name)
		return nil
	}
	return err
}

// keySize is the size of a key file in bytes.
const keySize = 32

// Key encrypts the secrets of one sandbox.
type Key struct {
	aead cipher.AEAD
	mac  []byte
}

// newKey derives the keys for encryption and for digests from the content of a key file.
func newKey(raw []byte) (*Key, error) {
	enc, err := hkdf.Key(sha256.New, raw, nil, "agbox secrets: encryption", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key for encryption: %w", err)
	}
	mac, err := hkdf.Key(sha256.New, raw, nil, "agbox secrets: digests", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key for digests: %w", err)
	}
	block, err := aes.NewCipher(enc)
	if err != nil {
		return nil, fmt.Errorf("AES: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("AES-GCM: %w", err)
	}
	return &Key{aead: aead, mac: mac}, nil
}

// Seal encrypts with AES-256-GCM. about says where the result is stored; Open needs the
// same text, so a record cannot take the place of another one.
func (k *Key) Seal(plain []byte, about string) []byte {
	return k.aead.Seal(nil, nil, plain, []byte(about))
}

// Open decrypts what Seal returned. It fails for anything that was changed, or was sealed
// with another key or about something else.
func (k *Key) Open(sealed []byte, about string) ([]byte, error) {
	plain, err := k.aead.Open(nil, nil, sealed, []byte(about))
	if err != nil {
		return nil, errors.New("the values do not belong to the key, or were changed")
	}
	return plain, nil
}

// Sum is a digest of data that tells nothing about it without the key.
func (k *Key) Sum(data []byte) []byte {
	h := hmac.New(sha256.New, k.mac)
	_, _ = h.Write(data) // never fails
	return h.Sum(nil)
}
