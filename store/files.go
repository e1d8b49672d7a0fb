package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
)

// lockRetry is the interval between two attempts to acquire a lock. flock itself
// has no timeout.
const lockRetry = 20 * time.Millisecond

// lockDir serializes processes that examine or create the files in dir.
func lockDir(ctx context.Context, dir string, wait time.Duration) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f, unix.LOCK_EX, wait); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// flock acquires the lock on f, or returns ErrLocked after wait. Closing f
// releases the lock.
func flock(ctx context.Context, f *os.File, how int, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		retry := time.NewTimer(lockRetry)
		select {
		case <-retry.C:
		case <-deadline.C:
			retry.Stop()
			return ErrLocked
		case <-ctx.Done():
			retry.Stop()
			return ctx.Err()
		}
	}
}

// The clean marker is a small file beside the database. Close writes it; Open
// removes it. It records size, mtime, inode and transaction number of the
// database, so a stale marker does not match a database that has changed since.

func markerPath(database string) string { return database + ".clean" }

// stamp returns the text of the marker for a closed database file.
func stamp(f *os.File, g geometry) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("no inode number")
	}
	return fmt.Sprintf("size=%d mtime=%d inode=%d txid=%d\n",
		info.Size(), info.ModTime().UnixNano(), sys.Ino, g.txid), nil
}

// isClean reports whether the file is unchanged since the last Close.
func isClean(f *os.File, g geometry) bool {
	want, err := os.ReadFile(markerPath(f.Name()))
	if err != nil {
		return false
	}
	have, err := stamp(f, g)
	return err == nil && have == string(want)
}

// markClean does not sync: a lost marker only costs a check.
func markClean(database string) error {
	f, err := os.Open(database)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	g, err := probe(f)
	if err != nil {
		return err
	}
	text, err := stamp(f, g)
	if err != nil {
		return err
	}
	return os.WriteFile(markerPath(database), []byte(text), 0o600)
}

func unmarkClean(database string) error {
	err := os.Remove(markerPath(database))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return filesystem.SyncDir(filepath.Dir(database))
}

// Layout of the two meta pages of a bbolt file: a page header of 16 bytes, then
// the meta, in the machine's byte order. Source: bbolt's internal/common.
const (
	metaOffset   = 16
	metaSize     = 64
	metaChecksum = 56
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
)

// geometry is what the meta pages say about the file.
type geometry struct {
	pageSize int64
	// pages is the number of pages from the beginning of the file to the end of
	// the last page in use.
	pages uint64
	// txid is the number of the last committed transaction.
	txid uint64
}

// probe examines the file with plain reads, which are safe on any content. It
// returns an error for a file that is empty, too short, or without two valid
// meta pages.
//
// bbolt itself accepts a file with one valid meta page, and so would silently
// drop the last transaction. A meta fits into one disk sector, and disks write
// sectors atomically. So an invalid meta page means damage, not a crash.
func probe(f *os.File) (geometry, error) {
	info, err := f.Stat()
	if err != nil {
		return geometry{}, err
	}
	if !info.Mode().IsRegular() {
		return geometry{}, errors.New("it is not a regular file")
	}
	if info.Size() == 0 {
		return geometry{}, errors.New("the file is empty")
	}
	first, err := readMetaPage(f, 0)
	if err != nil {
		return geometry{}, fmt.Errorf("first meta page: %w", err)
	}
	second, err := readMetaPage(f, first.pageSize)
	if err != nil {
		return geometry{}, fmt.Errorf("second meta page: %w", err)
	}
	newest := first
	if second.txid > first.txid {
		newest = second
	}
	if newest.pages < 4 || newest.pages > uint64(info.Size()/newest.pageSize) {
		return geometry{}, fmt.Errorf("the file has %d bytes but needs %d pages of %d bytes",
			info.Size(), newest.pages, newest.pageSize)
	}
	return newest, nil
}

func readMetaPage(f *os.File, at int64) (geometry, error) {
	var buf [metaOffset + metaSize]byte
	if _, err := f.ReadAt(buf[:], at); err != nil {
		if errors.Is(err, io.EOF) {
			return geometry{}, errors.New("the file is too short")
		}
		return geometry{}, err
	}
	meta := buf[metaOffset:]
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:metaChecksum])
	switch {
	case order.Uint32(meta) != boltMagic:
		return geometry{}, errors.New("it is not a bbolt file")
	case order.Uint32(meta[4:]) != boltVersion:
		return geometry{}, fmt.Errorf("bbolt version %d", order.Uint32(meta[4:]))
	case order.Uint64(meta[metaChecksum:]) != sum.Sum64():
		return geometry{}, errors.New("wrong checksum")
	}
	g := geometry{
		pageSize: int64(order.Uint32(meta[8:])),
		pages:    order.Uint64(meta[40:]),
		txid:     order.Uint64(meta[48:]),
	}
	if g.pageSize < 1024 || g.pageSize&(g.pageSize-1) != 0 {
		return geometry{}, fmt.Errorf("page size %d", g.pageSize)
	}
	return g, nil
}
