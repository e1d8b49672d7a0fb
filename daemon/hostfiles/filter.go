package hostfiles

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

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

// tracked is a filter that also leaves out what git does not track.
type tracked struct {
	*filter
	// known are the paths that git tracks, with the folders above them.
	known map[string]bool
}

func (f *filter) onlyTracked(ctx context.Context, one Copy) (archive.Filter, error) {
	names, err := edits.Tracked(ctx, one.Source)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, refusal("What git tracks of %s is not known (%v): leave 'tracked' out, or use_gitignore instead.", one.Source, err).Because(err)
	}
	t := &tracked{filter: f, known: map[string]bool{".": true}}
	for _, name := range names {
		for ; !t.known[name]; name = path.Dir(name) {
			t.known[name] = true
		}
	}
	return t, nil
}

// Skip reports whether a path is excluded. The repository of a folder that is kept is kept.
func (t *tracked) Skip(name string, isDir bool) (bool, error) {
	outer, inner, _ := strings.Cut("/"+name+"/", "/.git/")
	switch outer = strings.Trim(outer, "/"); {
	case outer == strings.Trim(name, "/") && inner == "":
		if !t.known[name] {
			return true, nil
		}
	case !t.known[path.Clean(outer)]:
		return true, nil
	}
	return t.filter.Skip(name, isDir)
}

// maxIgnored is how many names of ignored files are kept, of those that look like secrets and
// of the others.
const maxIgnored = 5

// counting returns a filter that leaves out what f does, and counts what is ignored of the
// rest.
func (i *Ignored) counting(f *filter) archive.Filter {
	*i = Ignored{} // a copy is repeated from its beginning
	tree, err := gitignore.NewTree(nil, true)
	if err != nil {
		return f
	}
	return &counter{filter: f, tree: tree, to: i}
}

// counter is a filter that counts.
type counter struct {
	*filter
	tree *gitignore.Tree
	to   *Ignored
	// below is the folder in which all is ignored; empty outside of any.
	below string
	// off means that a .gitignore cannot be used: what it names is unknown.
	off bool
}

// Enter reads the folder's own .gitignore.
func (c *counter) Enter(name string, dir int) error {
	if !c.off && !c.ignoredAbove(name+"/") {
		c.off = c.tree.Enter(name, dir) != nil
	}
	return c.filter.Enter(name, dir)
}

// Skip reports whether a path is excluded, and counts it if it is not.
func (c *counter) Skip(name string, isDir bool) (bool, error) {
	skip, err := c.filter.Skip(name, isDir)
	if skip || err != nil || c.off || gitignore.Inside(name) {
		return skip, err
	}
	ignored := c.ignoredAbove(name)
	if !ignored {
		c.below = ""
		if ignored, err = c.tree.Skip(name, isDir); err != nil {
			c.off = true
			return false, nil //nolint:nilerr // only the count is lost
		}
		if ignored {
			c.found(name, isDir)
		}
	}
	if ignored && !isDir {
		c.to.Files++
	}
	return false, nil
}

func (c *counter) ignoredAbove(name string) bool {
	return c.below != "" && strings.HasPrefix(name, c.below+"/")
}

// found notes a path that a .gitignore names.
func (c *counter) found(name string, isDir bool) {
	list, shown := &c.to.others, name
	if LooksSecret(path.Base(name)) {
		list = &c.to.secrets
	}
	if isDir {
		c.below, shown = name, name+"/"
	}
	if len(*list) < maxIgnored {
		*list = append(*list, strings.ToValidUTF8(shown, "\uFFFD"))
	}
}

// secretNames are patterns of the names of files that usually hold secrets.
var secretNames = []string{
	".env", ".env.*", "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.tfvars", "*.kdbx", "id_*", ".npmrc", ".netrc", ".pypirc", ".envrc",
	"*secret*", "*credential*", "*password*", "*token*",
}

// LooksSecret reports whether a file of that name usually holds a secret.
func LooksSecret(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretNames, func(pattern string) bool {
		ok, _ := path.Match(pattern, name) // the patterns are valid
		return ok
	})
}
