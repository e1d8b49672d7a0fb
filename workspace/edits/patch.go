package edits

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
