package hostfiles

import (
	"context"
	"errors"
	"path"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// filter returns what a copy leaves out, or counts; nil if it is nothing.
func (t *Tree) filter(ctx context.Context) (archive.Filter, error) {
	one := t.copied
	counts := one.Base && one.Ignored != nil && !one.Gitignore && !one.Tracked
	if len(one.Excludes) == 0 && !one.Gitignore && !one.Tracked && !counts {
		return nil, nil
	}
	f, err := newFilter(one)
	switch {
	case err != nil:
		return nil, err
	case one.Tracked:
		return f.onlyTracked(ctx, one)
	case counts:
		return one.Ignored.counting(f), nil
	}
	return f, nil
}

// filter excludes what patterns name while a tree is packed.
type filter struct {
	*gitignore.Tree
	// root is the path of the tree, for errors.
	root string
}

func newFilter(one Copy) (*filter, error) {
	f := &filter{root: one.Source}
	var err error
	f.Tree, err = gitignore.NewTree(one.Excludes, one.Gitignore)
	return f, f.explain(err)
}

// Enter reads the folder's own .gitignore.
func (f *filter) Enter(name string, dir int) error { return f.explain(f.Tree.Enter(name, dir)) }

// Skip reports whether a path is excluded.
func (f *filter) Skip(name string, isDir bool) (bool, error) {
	skip, err := f.Tree.Skip(name, isDir)
	return skip, f.explain(err)
}

// explain turns errors of patterns into refusals.
func (f *filter) explain(err error) error {
	var bad *gitignore.FileError
	switch {
	case !errors.As(err, &bad):
		return err
	case bad.Listed:
		return refusal("The exclude_patterns cannot be used (%v): use fewer or simpler patterns.", bad.Err).Because(err)
	}
	return refusal("%s cannot be used (%v): use fewer or simpler patterns there, or copy with 'use_gitignore: false'.",
		path.Join(f.root, bad.Dir, ".gitignore"), bad.Err).Because(err)
}
