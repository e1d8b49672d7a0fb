package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// initialMmap is the initial size of the mapping, in bytes. Growing it later
// blocks until all readers have finished.
const initialMmap = 64 << 20

// Open opens the database of an install, or creates one if there has never been
// one. If Open refuses a database, it leaves the file unchanged, byte for byte.
// Errors are faults that wrap ErrDamaged, ErrLost, ErrInstallMismatch,
// ErrNewerSchema, ErrLocked, ErrCheckUnfinished or the system's error.
//
// ctx applies to Open only, not to the returned store.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	db, meta, err := open(ctx, o)
	if err != nil {
		return nil, openFault(o, err)
	}
	s := &Store{path: o.Path, keys: keysOf(o.Path), log: o.Logger, db: db, meta: meta}
	if err := db.View(func(b *bolt.Tx) error { s.published.Store(int64(b.ID())); return nil }); err != nil {
		return nil, errors.Join(openFault(o, err), db.Close())
	}
	s.queue.init()
	s.writer.Go(s.write)
	return s, nil
}

// openFault turns errors that are not faults yet into faults. It leaves the
// errors of ctx as they are.
func openFault(o Options, err error) error {
	switch {
	case fault.Of(err) != nil:
		return err
	case errors.Is(err, ErrLocked), errors.Is(err, berrors.ErrTimeout):
		return locked(o.Path)
	case errors.Is(err, ErrDamaged):
		return damaged(o.Path, err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return cannotOpen(o.Path, err)
}

func open(ctx context.Context, o Options) (*bolt.DB, *storev1.Meta, error) {
	folder := filepath.Dir(o.Path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, err
	}
	unlock, err := lockDir(ctx, folder, o.LockTimeout)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	created, err := prepare(o)
	if err != nil {
		return nil, nil, err
	}
	f, err := inspect(ctx, o, created)
	if err != nil {
		return nil, nil, err
	}
	return openForWriting(o, f)
}

// inspect does every check that needs no write: whether the file is sound,
// belongs to this install, and has a schema that this build supports. It returns
// the identity of the inspected file.
func inspect(ctx context.Context, o Options, created bool) (fs.FileInfo, error) {
	f, err := os.Open(o.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	// The lock is shared so that the check's process can read; it excludes writers.
	if err := flock(ctx, f, unix.LOCK_SH, o.LockTimeout); err != nil {
		return nil, err
	}
	g, err := probe(f)
	if err != nil {
		return nil, damaged(o.Path, err)
	}
	if !created && !isClean(f, g) {
		if err := check(ctx, o, f); err != nil {
			return nil, err
		}
	}
	if err := checkMeta(o); err != nil {
		return nil, err
	}
	return f.Stat()
}

// checkMeta checks the meta record through a read-only mapping.
func checkMeta(o Options) error {
	return guardBolt(func() (err error) {
		db, err := bolt.Open(o.Path, 0, &bolt.Options{ReadOnly: true, Timeout: o.LockTimeout})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return db.View(func(b *bolt.Tx) error {
			meta, err := readMeta(b)
			if err != nil {
				return damaged(o.Path, err)
			}
			if meta.GetSchemaVersion() > SchemaVersion {
				return newerSchema(o.Path, meta.GetSchemaVersion())
			}
			installID, found, err := readSentinel(o.Sentinel)
			if err != nil {
				return err
			}
			if found && installID != meta.GetInstallId() {
				return mismatch(o.Path, o.Sentinel, installID, meta.GetInstallId())
			}
			if meta == nil {
				if err := isSeedDatabase(b); err != nil {
					return damaged(o.Path, err)
				}
			}
			return nil
		})
	})
}

// openForWriting opens the file that inspect returned and prepares it for writing.
func openForWriting(o Options, seen fs.FileInfo) (db *bolt.DB, meta *storev1.Meta, err error) {
	if db, err = openSeen(o, seen); err != nil {
		return nil, nil, err
	}
	if meta, err = prepareForWriting(o, db); err == nil && meta.GetRewrite() {
		db, err = rewrite(o, db, seen)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeOpened(db))
	}
	return db, meta, nil
}

func closeOpened(db *bolt.DB) error {
	if db == nil {
		return nil
	}
	return db.Close()
}

// prepareForWriting migrates the schema, and writes the sentinel if it is missing.
func prepareForWriting(o Options, db *bolt.DB) (*storev1.Meta, error) {
	if err := unmarkClean(o.Path); err != nil {
		return nil, err
	}
	meta, err := migrate(db, keysOf(o.Path), migrations, o.Now())
	if err != nil {
		return nil, err
	}
	found, err := exists(o.Sentinel)
	if err == nil && !found {
		err = runSteps(sentinelSteps(o.Sentinel, meta.GetInstallId()))
	}
	return meta, err
}

// openSeen opens the file that was inspected.
func openSeen(o Options, seen fs.FileInfo) (db *bolt.DB, err error) {
	err = guardBolt(func() (err error) {
		db, err = bolt.Open(o.Path, 0o600, &bolt.Options{
			Timeout:         o.LockTimeout,
			FreelistType:    bolt.FreelistMapType,
			InitialMmapSize: initialMmap,
			OpenFile:        func(name string, flag int, _ os.FileMode) (*os.File, error) { return openSame(name, flag, seen) },
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return db, nil
}

// openSame opens the inspected file and no other. bbolt alone would create a new
// database if the file had disappeared, and initialize one in an empty file.
func openSame(name string, flag int, seen fs.FileInfo) (*os.File, error) {
	f, err := os.OpenFile(name, flag&^os.O_CREATE, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!os.SameFile(seen, info) || info.Size() != seen.Size()) {
		err = errors.New("the file was changed while it was being opened")
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// compactBatch bounds a transaction of a copy, in bytes.
const compactBatch = 16 << 20

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

// Examine checks whether Open would succeed. It creates and changes nothing. The
// error is nil for a database that Open accepts, errdefs.ErrNotFound if there
// has never been one, and otherwise the error of Open. o.AdoptLost is ignored.
func Examine(ctx context.Context, o Options) error {
	o = o.withDefaults()
	err := examine(ctx, o)
	if err == nil || errdefs.IsNotFound(err) {
		return err
	}
	return openFault(o, err)
}

func examine(ctx context.Context, o Options) error {
	folder := filepath.Dir(o.Path)
	if has, err := exists(folder); err != nil || !has {
		return orNotFound(o, err)
	}
	unlock, err := lockDir(ctx, folder, o.LockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	has, err := exists(o.Path)
	if err != nil {
		return err
	}
	if has {
		_, err := inspect(ctx, o, false)
		return err
	}
	installID, hadOne, err := readSentinel(o.Sentinel)
	if err != nil || !hadOne {
		return orNotFound(o, err)
	}
	return lost(o.Path, o.Sentinel, installID)
}

func orNotFound(o Options, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("there has never been a database %s: %w", o.Path, errdefs.ErrNotFound)
}

// InstallIDOf reads the install id from the sentinel file. found is false if
// the file does not exist.
func InstallIDOf(sentinel string) (id string, found bool, err error) { return readSentinel(sentinel) }
