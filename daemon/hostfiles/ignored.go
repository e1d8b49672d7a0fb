package hostfiles

import (
	"path"
	"slices"
	"strings"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// maxIgnored is how many names of ignored files are kept, of those that look like secrets and
// of the others.
const maxIgnored = 5

// Ignored is what a copy has although a .gitignore of its source names it.
type Ignored struct {
	// Files is the number of files, with those in folders that are named.
	Files uint64
	// secrets and others are the first paths that are named. Those of folders end in "/".
	secrets, others []string
}

// Names returns some of the paths that are named, those that look like secrets first.
func (i *Ignored) Names() []string {
	slices.Sort(i.secrets)
	slices.Sort(i.others)
	return slices.Concat(i.secrets, i.others)
}

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
