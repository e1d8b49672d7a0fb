package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// The clean marker is a small file beside the database. Close writes it, Open
// removes it. It describes the file it speaks of, so that one which outlived a
// change of the database by any way says nothing.

func markerPath(database string) string { return database + ".clean" }

// stamp describes a database file at rest.
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

// isClean tells whether the file is as the last Close has left it.
func isClean(f *os.File, g geometry) bool {
	want, err := os.ReadFile(markerPath(f.Name()))
	if err != nil {
		return false
	}
	have, err := stamp(f, g)
	return err == nil && have == string(want)
}

// markClean needs no sync: a marker that gets lost costs a check.
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
