package review

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"
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

// workTrees says which work trees of git in ignored folders may have what is not committed: those
// whose index git has written since the copy. What is committed there is in the references of the
// workspace, and the rest is in ignored files only. open is nil if the sandbox runs.
func (c *comparison) workTrees(ctx context.Context, open Archive) error {
	var used []string
	for _, dir := range c.ignoredTrees {
		is, err := c.usedTree(ctx, dir, open)
		if err != nil {
			return err
		}
		if is {
			used = append(used, dir)
		}
	}
	if len(used) == 0 {
		return nil
	}
	what := fmt.Sprintf("what may not be committed in the ignored work tree %q", used[0])
	if len(used) > 1 {
		what += fmt.Sprintf(" and %d more", len(used)-1)
	}
	return c.unshown(what, fmt.Sprintf("`agbox exec %[1]s -- git -C %[2]s status` shows it, and `agbox exec %[1]s -- git worktree remove %[2]s` ends a work tree that has nothing.", c.sandboxID, shellWord(used[0])))
}

// usedTree reports whether a folder is a work tree of another repository, in which git has worked
// since the copy. It is, too, if that cannot be told.
func (c *comparison) usedTree(ctx context.Context, dir string, open Archive) (used bool, err error) {
	s := &references{review: c.review, sandboxID: c.sandboxID, open: open, left: maxReferences}
	own, common, err := s.folders(ctx, path.Join(c.base.GetTarget(), dir))
	if err == nil && own != common {
		copied := time.Unix(0, c.base.GetCopiedAt()).Truncate(time.Second) // the engine's archives have whole seconds
		_, used, err = s.text(ctx, own+"/HEAD", maxRef)
		if used && err == nil {
			err = s.first(ctx, own+"/index", func(h *tar.Header, _ io.Reader) error {
				used = !h.ModTime.Before(copied)
				return nil
			})
		}
	}
	if errors.Is(err, errUnbrought) {
		return true, nil
	}
	return used, err
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
