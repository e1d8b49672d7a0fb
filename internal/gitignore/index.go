package gitignore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Why an index does not name all paths: it is no index of versions 2 to 4, it has the rest
// elsewhere, it names only the folder of some, or its paths are too long together.
var (
	ErrDamaged = errors.New("it is damaged")
	ErrSplit   = errors.New("it is split")
	ErrSparse  = errors.New("it is sparse")
	ErrPaths   = fmt.Errorf("its paths have more than %d MiB", maxTracked>>20)
)

// RewriteIndex is the command that writes an index that is split or of an older version, which is
// larger, in a form that ReadIndex reads. Without the setting the next command of git splits it again.
const RewriteIndex = "git config core.splitIndex false && git update-index --no-split-index --index-version 4"

// Remedy returns the command that helps against an error of ReadIndex; empty if none does.
func Remedy(err error) string {
	switch {
	case errors.Is(err, ErrSplit):
		return RewriteIndex
	case errors.Is(err, ErrSparse):
		return "git config --worktree index.sparse false && git update-index --index-version 4"
	case errors.Is(err, ErrDamaged):
		return "rm .git/index && git reset -q"
	}
	return ""
}

// Tracked returns the paths that an index of git names: what is tracked although patterns name it.
// hash is the size of the names of objects in bytes. The error says why these are not all, as that of
// ReadIndex.
func Tracked(index []byte, hash int) (paths []string, err error) {
	_, err = ReadIndex(index, hash, func(e IndexEntry) {
		if e.File() {
			paths = append(paths, e.Path)
		}
	})
	return paths, err
}

// IndexEntry is what an index of git says about a path.
type IndexEntry struct {
	Path string
	// Mode is as in a tree of git. Stage is 0 unless a merge has a conflict there.
	Mode  uint32
	Stage int
	// Size is that of the file in the work tree, in bytes modulo 1<<32, and Modified its time, when
	// git compared them last. Object is the name of its content.
	Size     uint32
	Modified time.Time
	Object   []byte
	// Absent is set if the work tree does not have the file, as a sparse one.
	Absent bool
}

// File reports whether the entry is a file or a symbolic link, and not a submodule or a folder.
func (e IndexEntry) File() bool { return e.Mode>>12 == 0o10 || e.Mode>>12 == 0o12 }

// ReadIndex calls each with the entries of an index of git. An index is as hostile as all files of a
// workspace: what cannot be read ends the list, and so does more than maxTracked bytes of paths,
// because paths can share their beginnings. The error says why these are not all. tree is the name of
// the tree that git last found to have the same; empty if something was added since.
func ReadIndex(index []byte, hash int, each func(IndexEntry)) (tree []byte, err error) {
	const head, stat, extended, absent = 12, 40, 0x4000, 0x4000
	if len(index) < head || string(index[:4]) != "DIRC" {
		return nil, ErrDamaged
	}
	version, count := binary.BigEndian.Uint32(index[4:]), binary.BigEndian.Uint32(index[8:])
	if version < 2 || version > 4 {
		return nil, ErrDamaged
	}
	last, total := "", 0
	rest, folders := index[head:], false
	for ; count > 0; count-- {
		at := stat + hash + 2
		if len(rest) < at {
			return nil, ErrDamaged
		}
		flags := binary.BigEndian.Uint16(rest[at-2:])
		e := IndexEntry{
			Mode: binary.BigEndian.Uint32(rest[24:]), Stage: int(flags >> 12 & 3), Size: binary.BigEndian.Uint32(rest[36:]), Object: rest[stat : stat+hash],
			Modified: time.Unix(int64(binary.BigEndian.Uint32(rest[8:])), int64(binary.BigEndian.Uint32(rest[12:]))),
		}
		if flags&extended != 0 {
			if at += 2; len(rest) < at {
				return nil, ErrDamaged
			}
			e.Absent = binary.BigEndian.Uint16(rest[at-2:])&absent != 0
		}
		kept := 0
		if version == 4 { // the path shares its beginning with the one before
			cut, n := varint(rest[at:])
			if n == 0 || cut > uint64(len(last)) {
				return nil, ErrDamaged
			}
			at, kept = at+n, len(last)-int(cut)
		}
		end := bytes.IndexByte(rest[at:], 0)
		if end < 0 {
			return nil, ErrDamaged
		}
		last = last[:kept] + string(rest[at:at+end])
		if total += len(last); total > maxTracked {
			return nil, ErrPaths
		}
		if len(last) > maxPath {
			return nil, ErrDamaged
		}
		e.Path = last
		each(e)
		folders = folders || e.Mode>>12 == 0o4
		size := at + end + 1
		if version < 4 {
			size = (at + end + 8) &^ 7
		}
		rest = rest[min(size, len(rest)):]
	}
	switch {
	case bytes.HasPrefix(rest, []byte("link")):
		return nil, ErrSplit
	case folders:
		return nil, ErrSparse
	}
	return treeOf(rest, hash), nil
}

// treeOf returns the tree that the extensions of an index name.
func treeOf(rest []byte, hash int) []byte {
	for len(rest) > 8+hash {
		name, size := string(rest[:4]), int64(binary.BigEndian.Uint32(rest[4:]))
		rest = rest[8:]
		if size > int64(len(rest)) {
			return nil
		}
		if name == "TREE" { // of the top: its path, which is empty, how many entries and trees it has, and its name
			_, top, _ := bytes.Cut(rest[:size], []byte{0})
			counts, top, _ := bytes.Cut(top, []byte{'\n'})
			if len(counts) == 0 || counts[0] == '-' || len(top) < hash {
				return nil
			}
			return top[:hash]
		}
		rest = rest[size:]
	}
	return nil
}

const (
	// maxPath is the maximum length of a path in bytes, as in the kernel.
	maxPath = 4095
	// maxTracked bounds the paths of an index together, in bytes: two million of 32.
	maxTracked = 64 << 20
)

// varint reads a number as git writes offsets; n is its size, 0 if it is none.
func varint(b []byte) (value uint64, n int) {
	for n < len(b) && n < 5 {
		c := b[n]
		n++
		value = value<<7 | uint64(c&0x7f)
		if c&0x80 == 0 {
			return value, n
		}
		value++
	}
	return 0, 0
}
