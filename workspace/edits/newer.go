package edits

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// maxTrees is how many trees and commits are read to compare two commits. maxTree is the maximum
	// size of one in bytes. All of them, with what they take in the repository, are at most eight times as large.
	maxTrees = 2_000
	maxTree  = 4 << 20
	// maxNewer is how many files may be newer, and maxNames the size of all their names in bytes.
	maxNewer = 100_000
	maxNames = 16 << 20
	// maxLines is the maximum size of a file whose ends of lines git may have changed, in bytes.
	maxLines = 64 << 20
)

// ErrUnread is the error for commits of a sandbox that cannot be compared: their objects are in no file
// of their own and not in the folder's repository, or are damaged, or there are too many.
var ErrUnread = errors.New("the trees of the commits cannot be read")

// Newer is a file that a commit of a sandbox has and an earlier one has not, or has otherwise.
type Newer struct{ tip treeEntry }

// Is reports whether the commit has this version: its bytes, or what git stores of it if it changes the ends
// of lines, or git-lfs if that keeps the content.
func (n Newer) Is(f *File, content io.ReadSeeker) (bool, error) {
	if f.Mode() != n.tip.mode {
		return false, nil
	}
	name, err := objectName(hashLike(n.tip.object), "blob", f.Size, content)
	if name == n.tip.object || f.Link || err != nil {
		return err == nil && name == n.tip.object, err
	}
	if n.isText(lfsText(f)) || f.Size > maxLines {
		return n.isText(lfsText(f)), nil
	}
	var text strings.Builder
	if _, err = content.Seek(0, io.SeekStart); err == nil {
		_, err = io.Copy(&text, content)
	}
	return err == nil && n.isText(strings.ReplaceAll(text.String(), "\r\n", "\n")), err
}

// isText reports whether a text is what git has stored of the file.
func (n Newer) isText(text string) bool {
	name, err := objectName(hashLike(n.tip.object), "blob", int64(len(text)), strings.NewReader(text))
	return err == nil && name == n.tip.object
}

// lfsText is what git stores of a file whose content git-lfs keeps.
func lfsText(f *File) string {
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%x\nsize %d\n", f.Sum, f.Size)
}

// IsAfter is Is of a file after a change.
func (n Newer) IsAfter(c Change) (bool, error) {
	if c.After == nil {
		return false, nil
	}
	content, err := os.Open(c.AfterFile())
	if err != nil {
		return false, err
	}
	defer content.Close() // only read
	return n.Is(c.After, content)
}

// Stored is Is of a version of which only the sum is known. It also returns how many bytes it has read in
// the repository of the sandbox for that. A content that cannot be read is another one.
func (h *History) Stored(ctx context.Context, folder string, one Newer, f *File) (is bool, read int, err error) {
	if f.Mode() != one.tip.mode {
		return false, 0, nil
	}
	if !f.Link && one.isText(lfsText(f)) {
		return true, 0, nil
	}
	t := h.trees(ctx, folder, min(maxLines, f.Size+f.Size/1000+1024)) // what does not compress takes a little more
	defer t.own.close()
	content, err := t.object("blob", one.tip.object, false)
	if err != nil {
		if errors.Is(err, ErrUnread) {
			err = ctx.Err()
		}
		return false, len(content), err
	}
	if !f.Link && f.Size == int64(len(content)+bytes.Count(content, []byte("\n"))) {
		content = bytes.ReplaceAll(content, []byte("\n"), []byte("\r\n"))
	}
	return f.Is(content), len(content), nil
}

// trees reads objects of at most so many bytes.
func (h *History) trees(ctx context.Context, folder string, most int64) *trees {
	return &trees{
		read: h.Read, size: len(h.Tip), most: most, raw: make(map[string][]byte), left: maxTrees, bytes: 8 * most, found: make(map[string]Newer),
		own: objects{git: &git{ctx: ctx, dir: folder}},
	}
}

// Newer returns the files that the tip has and the commit since has not, or has otherwise, without
// nested repositories. An empty since has no file. The folder is that of the copy.
func (h *History) Newer(ctx context.Context, folder, since string) (map[string]Newer, error) {
	t := h.trees(ctx, folder, maxTree)
	t.ours = since == h.Copied
	defer t.own.close()
	was, tip := since, ""
	err := t.ahead(treePair{"", since, h.Tip})
	if err == nil {
		tip, err = t.treeOf(h.Tip, false)
	}
	if since != "" && err == nil {
		was, err = t.treeOf(since, t.ours)
	}
	if err == nil && was != tip {
		err = t.compare(treePair{"", was, tip})
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return t.found, err
}

// trees compares trees of a sandbox, which are hostile. An object is what its name says.
type trees struct {
	// read reads the repository of the sandbox, and own that of the folder, which is looked for once; none
	// is set if it has none.
	read func(name string, most int64) ([]byte, error)
	own  objects
	none bool
	// ours is set if the earlier commit is one of the folder, size is the length of a name, and most that of
	// an object.
	ours bool
	size int
	most int64
	// raw are files that were read ahead. left is how many objects may still be read, and bytes how much.
	raw   map[string][]byte
	left  int
	bytes int64
	// found are the newer files, and names is the size of all their names.
	found map[string]Newer
	names int
}

// maxAhead is how many pairs of trees are read at once: each takes a call.
const maxAhead = 4

// treePair is a tree of a folder, whose name ends in a slash, and the earlier one. An empty name is none.
type treePair struct{ dir, was, tip string }

// ahead reads the files of objects at once: of earlier ones, only those that are not of the folder.
func (t *trees) ahead(pairs ...treePair) error {
	var names []string
	for _, p := range pairs {
		if names = append(names, p.tip); !t.ours {
			names = append(names, p.was)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, known := t.raw[name]
		return known || !t.valid(name)
	})
	slices.Sort(names)
	names = slices.Compact(names)
	files, reads := make([][]byte, len(names)), make([]func() error, len(names))
	for i, name := range names {
		reads[i] = func() (err error) {
			files[i], err = t.read(".git/objects/"+name[:2]+"/"+name[2:], t.most)
			return err
		}
	}
	err := together(reads...)
	for i, name := range names {
		t.raw[name] = files[i]
		t.bytes -= int64(len(files[i]))
	}
	if err == nil && t.bytes < 0 {
		err = ErrUnread
	}
	return err
}

func (t *trees) valid(name string) bool { return len(name) == t.size && gitignore.IsCommit(name) }

// treeOf returns the tree of a commit.
func (t *trees) treeOf(commit string, ours bool) (string, error) {
	text, err := t.object("commit", commit, ours)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	tree, is := strings.CutPrefix(line, "tree ")
	if !is {
		return "", ErrUnread
	}
	return tree, nil
}

// compare finds what one tree has and an earlier one has not.
func (t *trees) compare(p treePair) error {
	now, err := t.tree(p.tip, false)
	if err != nil {
		return err
	}
	before := make(map[string]treeEntry)
	if p.was != "" {
		if before, err = t.tree(p.was, t.ours); err != nil {
			return err
		}
	}
	var below []treePair
	for name, entry := range now {
		old := before[name]
		if name = p.dir + name; entry == old || entry.mode == "160000" {
			continue
		}
		if len(name) > maxPath {
			return ErrUnread
		}
		sub := treePair{dir: name + "/", tip: entry.object}
		if old.mode == "40000" {
			sub.was = old.object
		}
		if entry.mode == "40000" {
			below = append(below, sub)
		} else {
			t.found[name] = Newer{entry}
			if t.names += len(name); len(t.found) > maxNewer || t.names > maxNames {
				return ErrUnread
			}
		}
	}
	for some := range slices.Chunk(below, maxAhead) {
		if err := t.ahead(some...); err != nil {
			return err
		}
		for _, sub := range some {
			if err := t.compare(sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxPath is the maximum length of a path in bytes.
const maxPath = 4095

// tree returns the entries of a tree.
func (t *trees) tree(object string, ours bool) (map[string]treeEntry, error) {
	raw, err := t.object("tree", object, ours)
	if err != nil {
		return nil, err
	}
	all := make(map[string]treeEntry)
	for len(raw) > 0 {
		head, rest, _ := bytes.Cut(raw, []byte{0})
		octal, name, _ := strings.Cut(string(head), " ")
		mode, err := strconv.ParseUint(octal, 8, 32)
		if err != nil || len(rest) < t.size/2 || strings.Contains(name, "/") || !usable(name) || all[name].mode != "" {
			return nil, ErrUnread
		}
		entry := treeEntry{fmt.Sprintf("%o", mode), hex.EncodeToString(rest[:t.size/2])}
		switch {
		case mode == 0o40000 || mode == 0o120000 || mode == 0o160000:
		case mode&^0o777 != 0o100000:
			return nil, ErrUnread
		default: // git has had more modes
			entry.mode = (&File{Executable: mode&0o100 != 0}).Mode()
		}
		all[name], raw = entry, rest[t.size/2:]
	}
	return all, nil
}

// object returns an object of the sandbox, or the folder's own one: that first if ours is set.
func (t *trees) object(kind, name string, ours bool) ([]byte, error) {
	if t.left--; t.left < 0 || !t.valid(name) {
		return nil, ErrUnread
	}
	from := []func(kind, name string) ([]byte, error){t.loose, t.stored}
	if ours {
		from[0], from[1] = from[1], from[0]
	}
	content, err := from[0](kind, name)
	if content == nil && err == nil {
		content, err = from[1](kind, name)
	}
	if err != nil {
		return nil, err
	}
	is, err := objectName(hashLike(name), kind, int64(len(content)), bytes.NewReader(content))
	if t.bytes -= int64(len(content)); err == nil && (is != name || t.bytes < 0) {
		err = ErrUnread
	}
	return content, err
}

// loose reads an object that has a file of its own in the sandbox; nil if there is none.
func (t *trees) loose(kind, name string) ([]byte, error) {
	if err := t.ahead(treePair{tip: name}); len(t.raw[name]) == 0 || err != nil {
		return nil, err
	}
	z, err := zlib.NewReader(bytes.NewReader(t.raw[name]))
	if err != nil {
		return nil, ErrUnread
	}
	raw, err := io.ReadAll(io.LimitReader(z, t.most+1))
	head, content, _ := bytes.Cut(raw, []byte{0})
	if err != nil || string(head) != fmt.Sprintf("%s %d", kind, len(content)) || int64(len(raw)) > t.most {
		return nil, ErrUnread
	}
	return append([]byte{}, content...), nil
}

// stored reads an object of the folder's repository; nil if there is none.
func (t *trees) stored(_, name string) ([]byte, error) {
	if own := t.own.git; own.gitDir == "" && !t.none {
		where, err := workTree(own.ctx, own.dir)
		if t.none = err != nil; !t.none {
			own.gitDir = where[0]
		}
	}
	if t.none {
		return nil, nil
	}
	content, err := t.own.content(name, t.most)
	if err != nil {
		return nil, nil //nolint:nilerr // it is not there, or cannot be read
	}
	return append([]byte{}, content...), nil
}
