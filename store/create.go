package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Creation publishes the database first and the sentinel second. Each file is
// complete and synced before it is renamed to its final name. Therefore a
// sentinel proves that a database existed, and a database without a sentinel is
// an interrupted creation in which nothing was stored yet. After a crash, the
// next Open finds and does:
//
//	crash                                  finds                     does
//	while the temporary database is made   nothing, perhaps *.new    creates again
//	before the database's rename           a complete *.new          creates again; nobody has seen its id
//	before the sentinel's rename           database only             opens it, writes the sentinel from its meta
//	after the sentinel's rename            both                      opens it
//
// The disk cannot reorder the two renames, because the directory is synced
// between them. So a sentinel without a database means a lost database, never a
// new install.

// newSuffix marks a file that may be incomplete.
const newSuffix = ".new"

// step is one durable operation. Tests stop after each step to simulate a crash.
type step struct {
	name string
	do   func() error
}

func runSteps(steps []step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// createSteps returns the steps that create the database and sentinel of a new install.
func createSteps(path, sentinel, installID string, now time.Time) []step {
	return append(
		publishSteps(path, func(temp string) error { return buildDatabase(temp, installID, now) }),
		sentinelSteps(sentinel, installID)...)
}

func sentinelSteps(sentinel, installID string) []step {
	return publishSteps(sentinel, func(temp string) error {
		return os.WriteFile(temp, []byte(installID+"\n"), 0o600)
	})
}

// publishSteps returns the steps that replace path atomically with the file that write makes.
func publishSteps(path string, write func(temp string) error) []step {
	temp := path + newSuffix
	return []step{
		{"make " + temp, func() error {
			if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return write(temp)
		}},
		{"sync " + temp, func() error { return syncFile(temp) }},
		{"rename " + temp, func() error { return os.Rename(temp, path) }},
		{"sync the directory of " + path, func() error { return filesystem.SyncDir(filepath.Dir(path)) }},
	}
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// buildDatabase writes an empty database with the current schema. The buckets
// of a single sandbox are created by the first write to them.
func buildDatabase(path, installID string, now time.Time) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(b *bolt.Tx) error {
		for _, name := range [][]byte{
			bucketSandboxIDs, bucketExecIDs, bucketSandboxConfig, bucketSandboxDeleted, bucketEventOrder,
		} {
			if _, err := b.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return putMeta(b, &storev1.Meta{
			SchemaVersion: SchemaVersion,
			InstallId:     installID,
			CreatedAt:     timestamppb.New(now),
		})
	})
	return errors.Join(err, db.Close())
}

// exists reports whether path exists. It returns an error, not false, if the
// file cannot be examined, for example for lack of permission.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

// readSentinel returns the content of the sentinel without checking that it is
// a valid id. found is false if the file does not exist.
func readSentinel(path string) (id string, found bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return strings.TrimSpace(string(raw)), true, nil
}

// prepare creates the database if this is a new install or a lost one that may
// be adopted. created reports whether it did.
func prepare(o Options) (created bool, err error) {
	has, err := exists(o.Path)
	if err != nil || has {
		return false, err
	}
	installID, hadOne, err := readSentinel(o.Sentinel)
	switch {
	case err != nil:
		return false, err
	case !hadOne:
		installID = ids.New()
	case !o.AdoptLost:
		return false, lost(o.Path, o.Sentinel, installID)
	case !ids.Valid(installID):
		return false, mismatch(o.Path, o.Sentinel, installID, "")
	}
	o.Logger.Info("making a new database", "path", o.Path, "install_id", installID)
	return true, runSteps(createSteps(o.Path, o.Sentinel, installID, o.Now()))
}
