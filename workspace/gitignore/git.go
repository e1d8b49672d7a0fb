package gitignore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agbox/agbox/internal/ids"
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
// larger, in a form that Tracked reads. Without the setting the next command of git splits it again.
const RewriteIndex = "git config core.splitIndex false && git update-index --no-split-index --index-version 4"

// Remedy returns the command that helps against an error of Tracked; empty if none does.
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

// Bundle returns the command of git inside a sandbox that writes all references of a repository into
// the bundle BundleName, without those that came by another one, and the one that brings them from FILE
// to a repository of the host: to names of their own, new each time, without anything from elsewhere. git has the words that the first begins with. nested is
// the path of the repository in the workspace, or empty.
func Bundle(sandbox, git, nested string) (create, fetch string) {
	if nested != "" {
		sandbox += "/" + nested
	}
	return git + " bundle create " + BundleName + " '--exclude=refs/agbox/*' --all",
		fmt.Sprintf(`git fetch --no-tags --no-recurse-submodules FILE "*:refs/agbox/%s/$(date +%%s)/*"`, ids.Sanitize(sandbox))
}

// BundleName is where Bundle writes.
const BundleName = "/tmp/all"

// Tracked returns the paths that an index of git names: what is tracked although patterns name it.
// hash is the size of the names of objects in bytes. An index is as hostile as all files of a
// workspace: what cannot be read ends the list, and so does more than maxTracked bytes of paths,
// because paths can share their beginnings. The error says why these are not all.
func Tracked(index []byte, hash int) (paths []string, err error) {
	const head, stat, extended = 12, 40, 0x4000
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
			return paths, ErrDamaged
		}
		mode := binary.BigEndian.Uint32(rest[24:])
		if binary.BigEndian.Uint16(rest[at-2:])&extended != 0 {
			at += 2
		}
		kept := 0
		if version == 4 { // the path shares its beginning with the one before
			cut, n := varint(rest[min(at, len(rest)):])
			if n == 0 || cut > uint64(len(last)) {
				return paths, ErrDamaged
			}
			at, kept = at+n, len(last)-int(cut)
		}
		end := bytes.IndexByte(rest[min(at, len(rest)):], 0)
		if end < 0 {
			return paths, ErrDamaged
		}
		last = last[:kept] + string(rest[at:at+end])
		if total += len(last); total > maxTracked {
			return paths, ErrPaths
		}
		if len(last) > maxPath {
			return paths, ErrDamaged
		}
		if mode>>12 == 0o10 || mode>>12 == 0o12 { // a file or a link
			paths = append(paths, last)
		}
		folders = folders || mode>>12 == 0o4
		size := at + end + 1
		if version < 4 {
			size = (at + end + 8) &^ 7
		}
		rest = rest[min(size, len(rest)):]
	}
	switch {
	case bytes.HasPrefix(rest, []byte("link")):
		return paths, ErrSplit
	case folders:
		return paths, ErrSparse
	}
	return paths, nil
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

// ErrReferences is the error for references of git in a form that HeadCommit does not read.
var ErrReferences = errors.New("references of git in an unknown form")

var (
	commit    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile("^([0-9a-f]{40}|[0-9a-f]{64})$") })
	reference = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^refs/[^\x00-\x20]+$`) })
)

// maxSymbolic is how many symbolic references are followed, as by git.
const maxSymbolic = 5

// IsCommit reports whether a text is the name of an object of git.
func IsCommit(text string) bool { return commit().MatchString(text) }

// HeadCommit returns the commit that HEAD of a repository names; "" if it has none yet. read
// returns the trimmed text of a file of the folder .git, or "" if there is none.
func HeadCommit(read func(name string) (string, error)) (string, error) {
	name := "HEAD"
	for range maxSymbolic + 1 {
		text, err := read(name)
		if text == "" && err == nil && name != "HEAD" {
			var packed string
			packed, err = read("packed-refs")
			text = Packed(packed)[name]
		}
		if text == "" || err != nil || IsCommit(text) {
			return text, err
		}
		next, symbolic := strings.CutPrefix(text, "ref:")
		// A repository that keeps its references in tables has refs/heads/.invalid in HEAD.
		if name = strings.TrimSpace(next); !symbolic || !reference().MatchString(name) || slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.HasPrefix(part, ".") }) {
			return "", ErrReferences
		}
	}
	return "", ErrReferences
}

// Packed returns the commits of the references in the file packed-refs, by their names.
func Packed(text string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		if at, of, _ := strings.Cut(strings.TrimSpace(line), " "); IsCommit(at) {
			all[of] = at
		}
	}
	return all
}

// Repository returns the folder of a repository below the top of a tree, if a path is its .git.
func Repository(path string) (dir string, is bool) {
	dir, is = strings.CutSuffix(path, "/.git")
	return dir, is && !Inside(dir)
}

// Fetched reports whether git keeps under the name of a reference what it has from another
// repository.
func Fetched(name string) bool {
	return strings.HasPrefix(name, "refs/remotes/") || strings.HasPrefix(name, "refs/prefetch/")
}

// WorkTree returns the folder that git keeps for a work tree whose .git is a file with this text, and
// that of its references, which several may share. They are empty if git does not take it for a
// repository. dir is the work tree. read returns the text of a file, or "" if there is none.
func WorkTree(dir, text string, read func(name string) (string, error)) (own, common string, err error) {
	name, is := strings.CutPrefix(text, "gitdir:")
	if !is {
		return "", "", nil
	}
	own = below(dir, strings.TrimSpace(name))
	shared, err := read(own + "/commondir")
	if shared == "" || err != nil {
		return own, own, err
	}
	return own, below(own, strings.TrimSpace(shared)), nil
}

// below returns the path of what a file of git in a folder names.
func below(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
