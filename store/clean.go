package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

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
	return syncDir(filepath.Dir(database))
}
