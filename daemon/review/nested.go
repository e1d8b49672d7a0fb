package review

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/workspace/gitignore"
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

// What git tracks in a workspace is work although a .gitignore names it, as for git itself.

// index is where git says what it tracks, and maxIndex the maximum size of that file in bytes. A
// larger one is not read.
const (
	index    = ".git/index"
	maxIndex = 64 << 20
)

// errLargeIndex is the error for an index that is not read.
var errLargeIndex = fmt.Errorf("it is no file of at most %d MiB", maxIndex>>20)

// tracked returns what git tracks in the workspace of a running sandbox.
func (c *comparison) tracked(ctx context.Context) (map[string]bool, error) {
	t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(c.base.GetTarget() + "/" + index), Name: []byte("f"), Work: &guestv1.WorkScan{MaxSize: maxIndex}},
	}})
	switch fault.ReasonOf(err) {
	case agboxv1.ErrorReason_FILE_NOT_FOUND, agboxv1.ErrorReason_NOT_A_DIRECTORY, agboxv1.ErrorReason_FILE_FAILED:
		return nil, nil // .git may be a file, or a link in a loop
	}
	if err != nil {
		return nil, err
	}
	defer done()
	in := &stream{t: t}
	files := tar.NewReader(in)
	h, err := files.Next()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	var all map[string]bool
	if err == nil {
		all, err = c.indexed(h, files)
	}
	return all, in.explain(err)
}

// trackedIn is tracked for a sandbox that does not run.
func (s *stopped) trackedIn(ctx context.Context) (all map[string]bool, err error) {
	err = s.each(ctx, s.base.GetTarget()+"/"+index, func(path string, h *tar.Header, content io.Reader) error {
		if path != "" {
			return nil // a folder is no index
		}
		all, err = s.indexed(h, content)
		return err
	})
	if err != nil && ctx.Err() == nil && !errdefs.IsUnavailable(err) {
		return nil, nil //nolint:nilerr // .git may be a file, or a link in a loop: the engine says no more than that it failed
	}
	return all, err
}

// indexed returns the paths that an index names and the base does not have, and notes the others.
func (c *comparison) indexed(h *tar.Header, content io.Reader) (map[string]bool, error) {
	changed := !h.ModTime.Before(time.Unix(0, c.base.GetCopiedAt()).Truncate(time.Second)) // the engine's archives have whole seconds
	if h.Typeflag != tar.TypeReg || sizeOf(h) > maxIndex {
		if changed {
			c.partIndex = errLargeIndex
		}
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(content, maxIndex))
	if err != nil {
		return nil, err
	}
	var excluded *gitignore.Tree
	if !c.o.All {
		if excluded, err = gitignore.NewTree(c.base.GetExcludePatterns(), false); err != nil {
			return nil, unusable(err)
		}
	}
	all := make(map[string]bool)
	c.inIndex = make(map[string]bool)
	paths, err := gitignore.Tracked(text, max(20, len(c.base.GetHead())/2))
	if changed {
		c.partIndex = err
	}
	c.whole = err == nil
	for _, path := range paths {
		c.inIndex[path] = true
		if c.base.File(path) == nil && !c.o.All && Valid(path) && !c.foreign(path) && !excluded.Excludes(path) {
			all[path] = true
		}
	}
	return all, nil
}

// sendIndex sends the files of the base and the new ones that the index does not name, or did not before
// the files were read: with its new content, a file must not be taken for one that git tracks.
func (c *comparison) sendIndex(ctx context.Context, read func(context.Context) (map[string]bool, error)) error {
	if !c.o.Index || !c.whole {
		return nil
	}
	before := c.inIndex
	c.whole = false
	if _, err := read(ctx); err != nil || !c.whole {
		return err
	}
	part := new(agboxv1.WorkspaceIndex)
	flush := func() error {
		err := c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Index{Index: part}})
		part = new(agboxv1.WorkspaceIndex)
		return err
	}
	named := func(path string) bool { return before[path] && c.inIndex[path] }
	for _, f := range c.base.GetFiles() {
		if named(string(f.GetPath())) {
			continue
		}
		if part.Unnamed = append(part.Unnamed, fileOf(f)); len(part.GetUnnamed()) == partSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	for path := range c.seen {
		if named(path) || c.base.File(path) != nil {
			continue
		}
		of := &agboxv1.AdvancedFile{Path: []byte(path), File: baseFile(c.base.Copied()[path])}
		if part.Fresh = append(part.Fresh, of); len(part.GetFresh()) == partSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	part.Complete = true
	return flush()
}

// untold says that there may be work which only an index names that was not read as a whole.
func (c *comparison) untold() error {
	if c.partIndex == nil || !c.o.Removal {
		return nil
	}
	advice := fmt.Sprintf("`agbox exec %s -- git ls-files -ci --exclude-standard` shows them.", c.sandboxID)
	if remedy := gitignore.Remedy(c.partIndex); remedy != "" {
		advice = fmt.Sprintf("In %s of the sandbox, `%s` writes an index that can be read.", c.base.GetTarget(), remedy)
	}
	return c.unshown(fmt.Sprintf("any ignored files that git tracks, because its index cannot be read (%v)", c.partIndex), advice)
}

// retracked reports whether git tracks a file that a branch lost because git did not track it.
func (c *comparison) retracked(path string) bool {
	return c.inIndex[path] && c.base.File(path).GetUntracked()
}

// addTracked compares what git tracks and the first scan has not shown.
func (c *comparison) addTracked(ctx context.Context, tracked map[string]bool, excludes []string) error {
	left := 0
	for path := range tracked {
		if !c.seen[path] {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	return c.scan(ctx, &guestv1.WorkScan{ExcludePatterns: excludes, ChangedSince: math.MaxInt64}, func(path string, h *tar.Header, content io.Reader) error {
		if !tracked[path] {
			return nil
		}
		return c.found(path, h, content)
	})
}
