package edits

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/agbox/agbox/internal/filesystem"
)

// Patch writes changes as a patch that `git apply` takes, with binary files, and without what is
// too large. It returns the paths that are not in it because git refuses such names. It needs git.
func Patch(ctx context.Context, changes []Change, w io.Writer) (refused []string, err error) {
	changes = slices.DeleteFunc(slices.Clone(changes), Change.TooLarge)
	dir, err := filesystem.NewTempDir("patch")
	if err != nil {
		return nil, err
	}
	defer dir.Remove()
	g, err := scratchRepository(ctx, dir.Path)
	if err != nil {
		return nil, err
	}
	for _, of := range []side{before, after} {
		bad, err := g.refused(changes, of, strings.Repeat("1", 40))
		if err != nil {
			return nil, err
		}
		changes = slices.DeleteFunc(changes, func(c Change) bool {
			name, f, _ := of(&c)
			if f == nil || !bad[name] {
				return false
			}
			refused = append(refused, c.Path)
			return true
		})
	}
	was, err := g.tree(changes, before)
	if err != nil {
		return nil, err
	}
	is, err := g.tree(changes, after)
	if err != nil {
		return nil, err
	}
	slices.Sort(refused)
	return refused, g.pipe(nil, w, "diff-tree", "-r", "-p", "-M", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", was, is)
}

// tree makes a tree object of one side of changes.
func (g *git) tree(changes []Change, of side) (string, error) {
	var names, paths, modes []string
	for i := range changes {
		path, f, content := of(&changes[i])
		if f != nil {
			names, paths, modes = append(names, content), append(paths, path), append(modes, f.Mode())
		}
	}
	objects, err := g.blobs(names)
	if err != nil {
		return "", err
	}
	var list strings.Builder
	for i, object := range objects {
		fmt.Fprintf(&list, "%s %s 0\t%s\x00", modes[i], object, paths[i])
	}
	index := filepath.Join(g.dir, "index")
	if err := os.RemoveAll(index); err != nil {
		return "", err
	}
	with := *g
	with.env = append(with.env, "GIT_INDEX_FILE="+index)
	if _, err := with.run(strings.NewReader(list.String()), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	out, err := with.run(nil, "write-tree")
	return strings.TrimSpace(string(out)), err
}

const (
	// maxText is the size of a file in bytes up to which its changed lines are counted exactly.
	maxText = 4 << 20
	// head is how many bytes git looks at to tell whether a file is binary.
	head = 8000
)

// Lines counts the lines that a change of a file adds and removes, as git does, without
// keeping large files.
type Lines struct {
	Added, Removed int
	// Binary is true if there are no lines to count.
	Binary bool
}

// LineText is a version of a file. Its content is written to it. The zero value is an empty file.
type LineText struct {
	kept        []byte
	size, lines int
	cut, binary bool
}

// Write adds a piece of the content. It never fails.
func (t *LineText) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	t.binary = t.binary || bytes.IndexByte(p[:min(len(p), max(0, head-t.size))], 0) >= 0
	t.lines += bytes.Count(p, []byte("\n"))
	t.cut = p[len(p)-1] != '\n'
	if t.size += len(p); t.size > maxText {
		t.kept = nil
	} else {
		t.kept = append(t.kept, p...)
	}
	return len(p), nil
}

func (t *LineText) all() int {
	if t.cut {
		return t.lines + 1
	}
	return t.lines
}

// CompareLines counts the lines of a change.
func CompareLines(before, after *LineText) Lines {
	switch {
	case before.binary || after.binary:
		return Lines{Binary: true}
	case before.size > maxText || after.size > maxText || before.size == 0 || after.size == 0:
		return Lines{Added: after.all(), Removed: before.all()}
	}
	var s Lines
	text := string(before.kept)
	for _, e := range udiff.Lines(text, string(after.kept)) {
		s.Removed += lines(text[e.Start:e.End])
		s.Added += lines(e.New)
	}
	return s
}

func lines(text string) int {
	n := strings.Count(text, "\n")
	if text != "" && !strings.HasSuffix(text, "\n") {
		n++
	}
	return n
}
