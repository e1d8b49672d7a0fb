// This file keeps the base of each workspace that was copied into a sandbox: the
// files that were copied, byte for byte. What a sandbox changed is the difference from it.
//
// A base is a folder with two files. "pack" has the contents in blocks, each compressed by
// itself. "index" names the files, and is a zstd frame around a WorkspaceBase. Only the
// daemon writes them; the container does not see them.
//
// The order makes a base complete or absent whenever the daemon is killed. While a
// workspace is copied, Recorder writes the pack. Its Finish syncs the pack, and then the
// index appears by a rename. A folder without an index is no base, and the next copy
// replaces it. Advance appends to the pack behind what the index uses, then replaces the
// index by a rename, so a reader that has opened the base goes on with the earlier one. An
// exclusive lock (flock) on the pack orders concurrent calls of Advance. The index also keeps
// what was copied in, and for each file the versions that went to branches.
//
// Folders, devices, FIFOs and sockets are not part of a base, as in git. Neither is
// the inside of a git repository (gitignore.Inside): git of the host executes hooks and follows
// settings there.

package review

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

const (
	packName  = "pack"
	indexName = "index"
	// maxBaseIndex bounds the decompressed index in bytes: more than a million files.
	maxBaseIndex = 1 << 30
)

// ErrNoBase is the error for a sandbox without a base.
var ErrNoBase = errors.New("there is no base")

// Base is an opened base.
type Base struct {
	*storev1.WorkspaceBase
	byPath map[string]*storev1.BaseFile
	// folder has what the folder has of the files that went to a branch; nil is none.
	folder map[string]*storev1.BaseFile
	// lost has the files that went to a branch by a commit that is lost.
	lost map[string]bool
	// removed are the versions without a file that went to branches which the user has merged.
	removed []*storev1.BaseFile
	// copied has what was copied in of the files that were brought home since; nil is none.
	copied map[string]*storev1.BaseFile
	pack   *os.File
	// starts has the position of each block in the contents.
	starts []uint64
	// block is the decompressed block with the number held.
	held  int
	block []byte
	plain *zstd.Decoder
}

// OpenBase opens the base in a folder. It returns ErrNone if there is none. A Base is not safe
// for concurrent use.
func OpenBase(dir string) (*Base, error) {
	plain, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBaseIndex))
	if err != nil {
		return nil, err
	}
	b := &Base{WorkspaceBase: new(storev1.WorkspaceBase), held: -1, plain: plain}
	raw, err := readBase(dir, plain)
	if err == nil {
		err = unreadable(proto.Unmarshal(raw, b.WorkspaceBase))
	}
	if err == nil {
		b.pack, err = os.Open(filepath.Join(dir, packName))
		err = unreadable(err)
	}
	if err != nil {
		plain.Close()
		return nil, err
	}
	b.byPath = byPath(b.GetFiles())
	at := uint64(0)
	for _, one := range b.GetBlocks() {
		b.starts = append(b.starts, at)
		at += uint64(one.GetSize())
	}
	return b, nil
}

// BaseSummary returns the base in a folder without its files, which are most of it. It returns ErrNone
// if there is none.
func BaseSummary(dir string) (*storev1.WorkspaceBase, error) {
	b, _, err := apartBase(dir)
	return b, err
}

// apartBase is Summary, with the files as they are stored.
func apartBase(dir string) (b *storev1.WorkspaceBase, files []byte, err error) {
	plain, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBaseIndex))
	if err != nil {
		return nil, nil, err
	}
	defer plain.Close()
	raw, err := readBase(dir, plain)
	if err != nil {
		return nil, nil, err
	}
	var rest []byte
	for len(raw) > 0 {
		number, _, n := protowire.ConsumeField(raw)
		if n < 0 {
			return nil, nil, unreadable(protowire.ParseError(n))
		}
		if number == filesNumber {
			files = append(files, raw[:n]...)
		} else {
			rest = append(rest, raw[:n]...)
		}
		raw = raw[n:]
	}
	b = new(storev1.WorkspaceBase)
	return b, files, unreadable(proto.Unmarshal(rest, b))
}

// filesNumber is the number of the files in a WorkspaceBase.
const filesNumber = 6

// readBase returns the index in a folder. It returns ErrNone if there is none.
func readBase(dir string, plain *zstd.Decoder) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(dir, indexName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoBase
	}
	if err != nil {
		return nil, err
	}
	raw, err = plain.DecodeAll(raw, nil)
	return raw, unreadable(err)
}

func unreadable(err error) error {
	if err != nil {
		err = fmt.Errorf("the base of the workspace cannot be read: %w", err)
	}
	return err
}

// BaseVersion tells the base in a folder from the one that replaces it; empty is none.
func BaseVersion(dir string) string {
	info, err := os.Stat(filepath.Join(dir, indexName))
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// Commits say of the commits by which work went to branches what the folder's repository has of them.
type Commits struct {
	// Lost are those that no reference has any more: what they brought is not brought.
	Lost []string
	// Branch is set if the work is for a branch, and Elsewhere are those that it does not have. What they
	// brought is not brought there, but what a branch has lost because git does not track it stays so.
	// What the branch has counts also if the folder has got a later version since.
	Branch    bool
	Elsewhere []string
	// Merged are those that HEAD of the folder has: the folder has what they brought.
	Merged []string
}

// Show makes the base another one: what was brought to the folder or to a branch, or what was
// copied in. Open gives what was brought to the folder or came from it.
func (b *Base) Show(against agboxv1.WorkBase, c Commits) {
	switch against {
	case agboxv1.WorkBase_WORK_BASE_UNSPECIFIED:
		b.folder, b.lost = make(map[string]*storev1.BaseFile), make(map[string]bool)
		b.copied = make(map[string]*storev1.BaseFile)
		lost, other, merged := setOf(c.Lost), setOf(slices.Concat(c.Lost, c.Elsewhere)), setOf(c.Merged)
		b.branch(func(f *storev1.BaseFile) *storev1.BaseFile {
			last := later(there(f, lost), c.Branch)
			if !last.GetUntracked() {
				last = later(there(f, other), c.Branch)
			}
			path := string(f.GetPath())
			if b.lost[path] = last != f && !f.GetPast(); last != nil {
				b.folder[path], b.copied[path] = b.byPath[path], b.byPath[path]
			}
			if in := withinCommits(f, merged); last != nil && in != nil {
				b.folder[path] = plainFile(in)
			}
			return last
		})
	case agboxv1.WorkBase_WORK_BASE_FIRST_COPY:
		b.overlay(b.GetFirst())
		return
	case agboxv1.WorkBase_WORK_BASE_FOLDER:
		merged := setOf(c.Merged)
		b.branch(func(f *storev1.BaseFile) *storev1.BaseFile {
			f = withinCommits(f, merged)
			if f != nil && f.GetMode() == 0 {
				b.removed = append(b.removed, f)
			}
			return f
		})
	}
	if b.copied == nil {
		b.copied = make(map[string]*storev1.BaseFile)
	}
	for _, f := range b.GetFirst() {
		if b.copied[string(f.GetPath())] = f; f.GetMode() == 0 {
			b.copied[string(f.GetPath())] = nil
		}
	}
}

// branch puts those versions over the files of the base that pick returns of what went to branches.
func (b *Base) branch(pick func(*storev1.BaseFile) *storev1.BaseFile) {
	var over []*storev1.BaseFile
	for _, f := range b.GetBranched() {
		if f = pick(f); f != nil {
			over = append(over, f)
		}
	}
	b.overlay(over)
}

// later returns a version that went to a branch if the folder has got no later one since, or if past
// is set.
func later(f *storev1.BaseFile, past bool) *storev1.BaseFile {
	if f.GetPast() && !past {
		return nil
	}
	return f
}

// withinCommits returns the last version that one of some commits has brought, and nil if the folder has got a
// later one since. What a branch has lost because git does not track it, the folder has lost with that.
func withinCommits(f *storev1.BaseFile, commits map[string]bool) *storev1.BaseFile {
	missing := func(c string) bool { return !commits[c] }
	for f != nil && (f.GetHad() || len(f.GetCommits()) == 0 || slices.ContainsFunc(f.GetCommits(), missing)) {
		f = f.GetBefore()
	}
	if f = later(f, false); f.GetUntracked() {
		return &storev1.BaseFile{Path: f.GetPath(), Commits: f.GetCommits()}
	}
	return f
}

// plainFile returns a version of a file, and nil if it is none.
func plainFile(f *storev1.BaseFile) *storev1.BaseFile {
	if f.GetMode() == 0 {
		return nil
	}
	return f
}

// overlay puts files over those of the base.
func (b *Base) overlay(over []*storev1.BaseFile) {
	if overlay(b.byPath, over); len(over) > 0 { // else they are sorted
		b.Files = sortedFiles(b.byPath)
	}
}

// there returns what went to a branch last by commits of which none is lost; nil is nothing.
func there(f *storev1.BaseFile, lost map[string]bool) *storev1.BaseFile {
	for f != nil && slices.ContainsFunc(f.GetCommits(), func(c string) bool { return lost[c] }) {
		f = f.GetBefore()
	}
	return f
}

func setOf(commits []string) map[string]bool {
	set := make(map[string]bool, len(commits))
	for _, c := range commits {
		set[c] = true
	}
	return set
}

func byPath(all []*storev1.BaseFile) map[string]*storev1.BaseFile {
	out := make(map[string]*storev1.BaseFile, len(all))
	for _, f := range all {
		out[string(f.GetPath())] = f
	}
	return out
}

// overlay puts files over others; mode 0 is no file.
func overlay(files map[string]*storev1.BaseFile, over []*storev1.BaseFile) {
	for _, f := range over {
		if files[string(f.GetPath())] = f; f.GetMode() == 0 {
			delete(files, string(f.GetPath()))
		}
	}
}

func sortedFiles(files map[string]*storev1.BaseFile) []*storev1.BaseFile {
	return slices.SortedFunc(maps.Values(files), func(a, b *storev1.BaseFile) int { return bytes.Compare(a.GetPath(), b.GetPath()) })
}

// Close closes the base.
func (b *Base) Close() {
	b.plain.Close()
	_ = b.pack.Close() // only read
}

// File returns the file of a path, or nil.
func (b *Base) File(path string) *storev1.BaseFile { return b.byPath[path] }

// Folder returns the version in the folder of a file that went to a branch: nil if there is
// none. ok is false for other files, and if the base is not what was brought home.
func (b *Base) Folder(path string) (f *storev1.BaseFile, ok bool) {
	f, ok = b.folder[path]
	return f, ok
}

// Copied returns what was copied in of the files that were brought home since: nil if there was none.
func (b *Base) Copied() map[string]*storev1.BaseFile { return b.copied }

// Removed returns the files that are not there because a branch that is merged has removed them.
func (b *Base) Removed() []*storev1.BaseFile { return b.removed }

// Lost reports whether a file went to a branch by a commit that is lost.
func (b *Base) Lost(path string) bool { return b.lost[path] }

// BranchCommits returns the commits by which work went to branches, sorted.
func (b *Base) BranchCommits() []string { return BranchCommits(b.WorkspaceBase) }

// Unmoved returns those of BranchCommits of which it is not known that a branch has moved to them.
func (b *Base) Unmoved() []string {
	moved := setOf(b.GetMoved())
	return slices.DeleteFunc(b.BranchCommits(), func(c string) bool { return moved[c] })
}

// BranchCommits returns the commits by which work went to branches, sorted.
func BranchCommits(b *storev1.WorkspaceBase) []string {
	all := commitsOf(b, func(*storev1.BaseFile) bool { return true })
	if by := b.GetBroughtBy(); by != "" {
		all = append(all, by)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// CurrentCommits returns those of BranchCommits by which versions of files went of which the folder has
// got no later one since.
func CurrentCommits(b *storev1.WorkspaceBase) []string {
	return commitsOf(b, func(f *storev1.BaseFile) bool { return !f.GetPast() })
}

// commitsOf returns the commits of versions that count, sorted.
func commitsOf(b *storev1.WorkspaceBase, counts func(*storev1.BaseFile) bool) (all []string) {
	for _, f := range b.GetBranched() {
		for ; f != nil; f = f.GetBefore() {
			if counts(f) {
				all = append(all, f.GetCommits()...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Content writes the content of a regular file of the base to w.
func (b *Base) Content(f *storev1.BaseFile, w io.Writer) error {
	for at, left := f.GetOffset(), f.GetSize(); left > 0; {
		n, exact := slices.BinarySearch(b.starts, at)
		if !exact {
			n--
		}
		if err := b.load(n); err != nil {
			return err
		}
		from := at - b.starts[n]
		if from >= uint64(len(b.block)) {
			return errDamaged
		}
		piece := b.block[from:min(uint64(len(b.block)), from+left)]
		if _, err := w.Write(piece); err != nil {
			return err
		}
		at, left = at+uint64(len(piece)), left-uint64(len(piece))
	}
	return nil
}

var errDamaged = errors.New("the base of the workspace is damaged")

// load decompresses a block.
func (b *Base) load(n int) error {
	if n < 0 || n >= len(b.GetBlocks()) {
		return errDamaged
	}
	if n == b.held {
		return nil
	}
	b.held = -1
	one := b.GetBlocks()[n]
	raw := make([]byte, one.GetLength())
	_, err := b.pack.ReadAt(raw, int64(one.GetOffset()))
	if err == nil {
		b.block, err = b.plain.DecodeAll(raw, b.block[:0])
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	b.held = n
	return nil
}

// writeBase replaces the index of a base, which then is complete. files are files as they are stored.
func writeBase(dir string, base *storev1.WorkspaceBase, files []byte) error {
	slices.SortFunc(base.Files, func(a, b *storev1.BaseFile) int { return bytes.Compare(a.GetPath(), b.GetPath()) })
	raw, err := proto.MarshalOptions{}.MarshalAppend(files, base)
	if err != nil {
		return err
	}
	small, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	raw = small.EncodeAll(raw, nil)
	return filesystem.ReplaceFile(filepath.Join(dir, indexName), func(file *os.File) error {
		_, err := file.Write(raw)
		return err
	})
}

// lock takes the lock of a base, which closing the file gives back. The kernel's own wait would
// not end with ctx.
func lock(ctx context.Context, pack *os.File) error {
	for wait := time.Millisecond; ; wait = min(2*wait, longestWait) {
		err := unix.Flock(int(pack.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// longestWait is the longest time between two tries for a lock.
const longestWait = 100 * time.Millisecond
