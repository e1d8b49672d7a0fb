package review

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Advance replaces files of a base. It holds the lock of the base until Commit or Discard.
// One goroutine uses it.
type Advance struct {
	dir   string
	pack  *os.File
	out   *packWriter
	index *storev1.WorkspaceBase
	// branch is set if the files go to a branch, by a commit on top of tip. lost are earlier
	// commits that the host's repository does not have any more, and away these and those that only
	// other branches have.
	branch     bool
	by, tip    string
	lost, away map[string]bool
	// own is set if the files are the sandbox's own work.
	own bool
	// had is set if the branch had the next file before.
	had             bool
	first, branched map[string]*storev1.BaseFile
	// stored are the files of the base as they are stored, until files has read them. An error of
	// that ends Commit.
	stored []byte
	loaded map[string]*storev1.BaseFile
	failed error
	// moved is what Moved has noted, and changed is set if all else is not as it was.
	moved   []string
	changed bool
	// current is the file whose content arrives.
	current *storev1.BaseFile
	sum     hash.Hash
}

// BeginAdvance begins to advance the base in a folder, or what went to a branch, after those that do
// so already. It returns
// ErrNone if there is none, and the error of ctx if that ends before its turn.
func BeginAdvance(ctx context.Context, dir string, branch bool) (*Advance, error) {
	pack, err := os.OpenFile(filepath.Join(dir, packName), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNoBase
	}
	if err != nil {
		return nil, err
	}
	a, err := beginAdvance(ctx, dir, pack)
	if err != nil {
		_ = pack.Close() // also gives the lock back
		return nil, err
	}
	a.branch = branch
	return a, nil
}

func beginAdvance(ctx context.Context, dir string, pack *os.File) (*Advance, error) {
	if err := lock(ctx, pack); err != nil {
		return nil, err
	}
	b, stored, err := apartBase(dir)
	if err != nil {
		return nil, err
	}
	a := &Advance{dir: dir, pack: pack, index: b, stored: stored, first: byPath(b.GetFirst()), branched: byPath(b.GetBranched()), sum: sha256.New()}
	offset, written := uint64(0), uint64(0)
	for _, one := range b.GetBlocks() {
		offset, written = max(offset, one.GetOffset()+uint64(one.GetLength())), written+uint64(one.GetSize())
	}
	a.out, err = appendTo(pack, offset, written)
	return a, err
}

// By notes the commit that has the files on a branch, what the branch was before, and earlier
// commits that are lost: no branch is there any more. Only other branches have those that are elsewhere.
// It comes before the files.
func (a *Advance) By(commit, tip string, lost []string, elsewhere ...string) {
	a.by, a.tip, a.lost, a.away = commit, tip, setOf(lost), setOf(slices.Concat(lost, elsewhere))
	a.index.Moved = slices.DeleteFunc(a.index.Moved, func(c string) bool { return a.lost[c] })
	maps.DeleteFunc(a.branched, func(_ string, f *storev1.BaseFile) bool { return f.GetPast() && there(f, a.lost) == nil })
}

// FromSandbox notes that the files are the sandbox's own work, and do not come from the folder. It comes
// before them.
func (a *Advance) FromSandbox() { a.own = true }

// Had notes whether the branch had the version of the next file before.
func (a *Advance) Had(had bool) { a.had = had }

// Brought notes up to which commit the sandbox's commits were brought, by the commit of By.
func (a *Advance) Brought(commit string) {
	a.changed = a.changed || a.index.GetBrought() != commit || a.index.GetBroughtBy() != a.by
	a.index.Brought, a.index.BroughtBy = commit, a.by
	if a.by != "" { // a client says so only then
		a.Moved([]string{a.by})
	}
}

// Moved notes commits to which branches have moved.
func (a *Advance) Moved(commits []string) { a.moved = append(a.moved, commits...) }

// Remove takes a file out of the base.
func (a *Advance) Remove(path string) {
	a.finishFile()
	a.set(&storev1.BaseFile{Path: []byte(path)})
}

// Untrack notes files that a branch lost, because git does not track them in the workspace.
func (a *Advance) Untrack(paths [][]byte) {
	for _, path := range paths {
		f := there(a.branched[string(path)], a.lost)
		if f == nil {
			f = a.files()[string(path)]
		}
		if f = proto.CloneOf(f); f.GetMode() != 0 {
			f.Untracked = true
			a.set(f)
		}
	}
}

// set makes a file what the base has; mode 0 is no file.
func (a *Advance) set(f *storev1.BaseFile) {
	a.changed = true
	path := string(f.GetPath())
	if a.branch {
		last := there(a.branched[path], a.lost)
		f.Commits = nil
		if f.GetUntracked() { // the version is that of these commits
			f.Commits = slices.DeleteFunc(slices.Clone(last.GetCommits()), func(c string) bool { return c == a.by || c == a.tip })
		}
		if a.by != "" {
			f.Commits = append(f.Commits, a.by)
		}
		f.Past, f.Had, f.Before, a.branched[path] = false, a.had, a.earlier(last), f
		return
	}
	if a.first[path] == nil {
		a.first[path] = cmp.Or(a.files()[path], &storev1.BaseFile{Path: f.GetPath()})
	}
	a.pass(path)
	overlay(a.files(), []*storev1.BaseFile{f})
}

// maxVersions is how many versions of a file are kept that went to branches: the last one for each
// branch that has another one, and as many earlier ones as there is room for, which a branch may be
// reset to.
const maxVersions = 64

// earlier returns what stays noted of a file below what goes to a branch now. A call that is
// repeated replaces what it has noted.
func (a *Advance) earlier(f *storev1.BaseFile) *storev1.BaseFile {
	var kept []*storev1.BaseFile
	for ; f != nil; f = there(f.GetBefore(), a.lost) {
		if !slices.Contains(f.GetCommits(), a.by) {
			kept = append(kept, f)
		}
	}
	for n := len(kept) - 1; n > 0 && len(kept) >= maxVersions; n-- {
		if !slices.ContainsFunc(kept[n].GetCommits(), func(c string) bool { return a.away[c] }) {
			kept = slices.Delete(kept, n, n+1)
		}
	}
	return chain(kept[:min(len(kept), maxVersions-1)])
}

// chain joins versions of a file, the newest first; nil if there are none.
func chain(all []*storev1.BaseFile) (first *storev1.BaseFile) {
	for _, f := range slices.Backward(all) {
		f.Before = first
		first = f
	}
	return first
}

// pass notes that the folder has got a version of a file. Branches have theirs, unless it comes from
// the folder: what the user has made there is no work for a branch. A branch that has lost the file,
// because git does not track it, has none.
func (a *Advance) pass(path string) {
	var kept []*storev1.BaseFile
	for f := there(a.branched[path], a.lost); f != nil && a.own && !f.GetUntracked(); f = there(f.GetBefore(), a.lost) {
		f.Past = true
		kept = append(kept, f)
	}
	if a.branched[path] = chain(kept); len(kept) == 0 {
		delete(a.branched, path)
	}
}

// files returns the files of the base. What goes to a branch needs none of them.
func (a *Advance) files() map[string]*storev1.BaseFile {
	if a.loaded == nil {
		base := new(storev1.WorkspaceBase)
		a.failed = unreadable(proto.Unmarshal(a.stored, base))
		a.loaded, a.stored = byPath(base.GetFiles()), nil
	}
	return a.loaded
}

// Replace puts a file into the base. Content follows: that of a link is its target.
func (a *Advance) Replace(path string, link, executable bool) {
	a.finishFile()
	f := &storev1.BaseFile{Path: []byte(path), Mode: unix.S_IFREG | 0o644, Offset: a.out.written}
	switch {
	case link:
		f.Mode = unix.S_IFLNK | 0o777
	case executable:
		f.Mode = unix.S_IFREG | 0o755
	}
	a.current = f
	a.set(f)
}

// Note puts a regular file into the base of which no content is kept.
func (a *Advance) Note(path string, executable bool, size uint64, sum []byte, modified int64) {
	a.finishFile()
	f := &storev1.BaseFile{Path: []byte(path), Mode: unix.S_IFREG | 0o644, Size: size, Sha256: sum, Modified: modified}
	if executable {
		f.Mode = unix.S_IFREG | 0o755
	}
	a.set(f)
}

// Content adds content of the file of the last Replace.
func (a *Advance) Content(data []byte) {
	switch {
	case a.current == nil:
	case a.current.GetMode()&unix.S_IFMT == unix.S_IFLNK:
		a.current.Link = append(a.current.Link, data...)
	default:
		_, _ = a.sum.Write(data) // a hash never fails
		a.current.Size += uint64(len(data))
		a.out.add(data)
	}
}

func (a *Advance) finishFile() {
	if f := a.current; f != nil && f.GetMode()&unix.S_IFMT == unix.S_IFREG {
		f.Sha256 = a.sum.Sum(nil)
		a.sum.Reset()
	}
	a.current = nil
}

// Commit makes the base have all changes.
func (a *Advance) Commit() error {
	a.finishFile()
	defer a.pack.Close() // synced by close
	blocks, err := a.out.close()
	if err = cmp.Or(err, a.failed); err != nil {
		return err
	}
	if a.changed {
		a.index.Blocks = append(a.index.Blocks, blocks...)
		a.index.First, a.index.Branched = sortedFiles(a.first), sortedFiles(a.branched)
	}
	a.index.Files = sortedFiles(a.loaded) // once they are read, the index does not have them as they are stored
	in := setOf(BranchCommits(a.index))
	moved := slices.Concat(a.index.GetMoved(), a.moved)
	slices.Sort(moved)
	moved = slices.DeleteFunc(slices.Compact(moved), func(c string) bool { return !in[c] })
	if !a.changed && slices.Equal(moved, a.index.GetMoved()) {
		return nil
	}
	a.index.Moved = moved
	return writeBase(a.dir, a.index, a.stored)
}

// Discard leaves the base as it was.
func (a *Advance) Discard() {
	_, err := a.out.close()
	_ = cmp.Or(a.pack.Close(), err) // the index does not name what was appended
}
