package review

import (
	"archive/tar"
	"cmp"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxRepositories is how many nested repositories a comparison sends. One more than a client reads:
// so it knows that there are more.
const maxRepositories = 257

// repository sends a folder that has a .git, once. What is ignored counts only if files of it were
// copied, or for a removal.
func (c *comparison) repository(dir string, h *tar.Header, ignored bool) error {
	if !Valid(dir) || c.foreign(dir) || c.repositories[dir] || len(c.repositories) == maxRepositories || ignored && !c.o.Removal && !c.hasFolder(dir) {
		return nil
	}
	if c.repositories == nil {
		c.repositories = make(map[string]bool)
	}
	c.repositories[dir] = true
	if ignored && h.Typeflag != tar.TypeDir && c.o.Removal {
		c.ignoredTrees = append(c.ignoredTrees, dir)
	}
	return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Repository{
		Repository: &agboxv1.WorkspaceRepository{Path: []byte(dir), File: h.Typeflag != tar.TypeDir},
	}})
}

// unsearched says, once, that a folder was not searched to its end for repositories.
func (c *comparison) unsearched(dir string) error {
	if c.foreign(dir) || c.unsearchedSaid {
		return nil
	}
	c.unsearchedSaid = true
	return c.unshown(
		fmt.Sprintf("any repositories of git in or behind %q, where agbox did not look: the workspace has more than %d files, or folders that are too deep or cannot be read", cmp.Or(dir, "."), maxSearched),
		fmt.Sprintf("`agbox exec %s -- find . -name .git` in the workspace finds them.", c.sandboxID))
}

// unshown sends work that no difference shows.
func (c *comparison) unshown(what, advice string) error {
	return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Unshown{
		Unshown: &agboxv1.UnshownWork{What: what, Advice: advice},
	}})
}

// hasFolder reports whether the base has files below a folder.
func (c *comparison) hasFolder(dir string) bool {
	if c.copied == nil {
		c.copied = make(map[string]bool)
		for _, f := range c.base.GetFiles() {
			for up := path.Dir(string(f.GetPath())); up != "." && !c.copied[up]; up = path.Dir(up) {
				c.copied[up] = true
			}
		}
	}
	return c.copied[dir]
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./=:,+@%-]+$`).MatchString

// shellWord quotes a word of the sandbox for the shell into which a person copies a command.
func shellWord(word string) string {
	if plainWord(word) {
		return word
	}
	word = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, word)
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
