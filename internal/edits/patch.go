package edits

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/internal/scratch"
)

// Patch writes changes as a patch that `git apply` takes, with binary files, and without what is
// too large. It needs git.
func Patch(ctx context.Context, changes []Change, w io.Writer) error {
	changes = slices.DeleteFunc(slices.Clone(changes), Change.TooLarge)
	dir, err := scratch.New("patch")
	if err != nil {
		return err
	}
	defer dir.Remove()
	g, err := scratchRepository(ctx, dir.Path)
	if err != nil {
		return err
	}
	before, err := g.tree(changes, func(c Change) (string, *File, string) {
		if c.From != "" {
			return c.From, c.Before, c.BeforeFile()
		}
		return c.Path, c.Before, c.BeforeFile()
	})
	if err != nil {
		return err
	}
	after, err := g.tree(changes, func(c Change) (string, *File, string) { return c.Path, c.After, c.AfterFile() })
	if err != nil {
		return err
	}
	return g.pipe(nil, w, "diff-tree", "-r", "-p", "-M", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", before, after)
}

// tree makes a tree object of one side of changes.
func (g *git) tree(changes []Change, side func(Change) (path string, f *File, content string)) (string, error) {
	var names, paths, modes []string
	for _, c := range changes {
		path, f, content := side(c)
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
