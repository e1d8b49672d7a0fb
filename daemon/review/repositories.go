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

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/workspace/gitignore"
)

// maxRef is the maximum size of a file with one reference of git that is read, and maxReferences
// that of all references of a workspace, in bytes. What has more counts as work.
const (
	maxRef        = 4 << 10
	maxReferences = 16 << 20
)

// errUnbrought ends a comparison at the first work that it finds.
var errUnbrought = errors.New("there is work that was not brought home")

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

// references looks for work in the references of git in a sandbox, which are hostile.
type references struct {
	review    *Review
	sandboxID string
	open      Archive
	// copied is when the workspace was copied in: what is older is no work.
	copied time.Time
	// left is how many bytes may still be read.
	left int64
	// home is what references named when they were copied, and the commits that were brought.
	home map[string]bool
	// seen are the files and folders that were looked at, which work trees share.
	seen map[string]bool
	base *Base
	// current is the branch that HEAD of the workspace names; empty if it names a commit.
	current string
	// dir is the folder that is looked at, below the top of the workspace.
	dir string
	// work is what was found, and advice how it comes home.
	work, advice string
}

// top looks at what HEAD of the workspace names. What was brought to the folder is home only while
// HEAD is there: of another commit of the sandbox the folder may have got other files since.
func (s *references) top(ctx context.Context) error {
	own, common, err := s.folders(ctx, s.base.GetTarget())
	if err != nil || own == "" {
		return err
	}
	head, _, err := s.text(ctx, own+"/HEAD", maxRef)
	if name, is := strings.CutPrefix(head, "ref:"); is {
		s.current = strings.TrimSpace(name)
	}
	brought := s.base.GetBrought()
	if err != nil || brought == "" || len(s.base.GetExcludePatterns()) > 0 { // files of the commit may not have come
		return err
	}
	if s.base.GetBroughtBy() == "" {
		if tip, err := s.resolve(ctx, head, common); tip != brought || err != nil {
			return err
		}
	}
	s.home[brought] = true
	return nil
}

// resolve returns the commit of a HEAD with this text; empty if it has none, or none that agbox reads.
// common is the folder of the references.
func (s *references) resolve(ctx context.Context, head, common string) (string, error) {
	commit, err := gitignore.HeadCommit(func(name string) (text string, err error) {
		switch name {
		case "HEAD":
			return head, nil
		case "packed-refs":
			text, _, err = s.text(ctx, common+"/"+name, maxReferences)
		default:
			text, _, err = s.text(ctx, common+"/"+name, maxRef)
		}
		return text, err
	})
	if errors.Is(err, gitignore.ErrReferences) {
		return "", nil
	}
	return commit, err
}

// of looks at the repository of a folder. It returns errUnbrought if a reference names what is
// not home, or cannot be read.
func (s *references) of(ctx context.Context, dir string) error {
	own, common, err := s.folders(ctx, dir)
	if err != nil || own == "" {
		return err
	}
	for _, name := range []string{own + "/HEAD", common + "/packed-refs", common + "/refs", common + "/reftable"} {
		if s.seen[name] {
			continue
		}
		s.seen[name] = true
		err := s.each(ctx, name, func(h *tar.Header, content io.Reader) error {
			if h.Typeflag == tar.TypeDir || h.ModTime.Before(s.copied) || gitignore.Fetched(h.Name) || strings.HasSuffix(h.Name, ".lock") {
				return nil
			}
			return s.file(h, content)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// folders returns the folder that git keeps for a work tree, and that of its references, which
// several may share. They are empty if there is no repository.
func (s *references) folders(ctx context.Context, dir string) (own, common string, err error) {
	own = dir + "/.git"
	file, is, err := s.text(ctx, own, maxRef)
	if err != nil || !is {
		return own, own, err
	}
	return gitignore.WorkTree(dir, file, func(name string) (string, error) {
		text, _, err := s.text(ctx, name, maxRef)
		return text, err
	})
}

// text returns the text of a file of at most so many bytes, without space around it. It reports
// whether there is such a file.
func (s *references) text(ctx context.Context, name string, most int64) (text string, is bool, err error) {
	err = s.first(ctx, name, func(_ *tar.Header, content io.Reader) error {
		is = true
		text, err = s.bounded(content, most)
		return err
	})
	return strings.TrimSpace(text), is, err
}

// first calls f with a file, if it is there.
func (s *references) first(ctx context.Context, name string, f func(h *tar.Header, content io.Reader) error) error {
	return s.each(ctx, name, func(h *tar.Header, content io.Reader) error {
		if h.Typeflag == tar.TypeReg && h.Name == path.Base(name) {
			if err := f(h, content); err != nil {
				return err
			}
		}
		return io.EOF // nothing else is wanted
	})
}

// bounded reads a file of at most so many bytes.
func (s *references) bounded(content io.Reader, most int64) (string, error) {
	text, err := io.ReadAll(io.LimitReader(content, most+1))
	if err == nil && int64(len(text)) > most {
		err = s.unread()
	}
	return string(text), err
}

// each calls f with each entry of a file or folder until it fails; io.EOF is the end.
func (s *references) each(ctx context.Context, name string, f func(h *tar.Header, content io.Reader) error) error {
	in, done, err := s.review.readAll(ctx, s.sandboxID, name, s.open)
	if in == nil || err != nil {
		return err
	}
	defer done()
	most := &io.LimitedReader{R: in, N: s.left}
	defer func() { s.left = most.N }()
	for files := tar.NewReader(most); ; {
		h, err := files.Next()
		if err == nil {
			err = f(h, files)
		}
		switch {
		case errors.Is(err, errUnbrought):
			return err
		case most.N <= 0:
			return s.unread()
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read references of git: %w", err)
		}
	}
}

// file looks at a file that changed after the copy.
func (s *references) file(h *tar.Header, content io.Reader) error {
	if h.Typeflag != tar.TypeReg || strings.HasPrefix(h.Name, "reftable/") {
		return s.unread()
	}
	if h.Name == "packed-refs" {
		return s.packed(content)
	}
	text, err := s.bounded(content, maxRef)
	text = strings.TrimSpace(text)
	switch {
	case err != nil:
		return err
	case gitignore.IsCommit(text):
		return s.commit(text, h.Name)
	}
	// A repository that keeps its references in tables has refs/heads/.invalid in HEAD.
	if name, symbolic := strings.CutPrefix(text, "ref:"); !symbolic || strings.Contains(name, "/.") {
		return s.unread()
	}
	return nil
}

// packed looks at the references of a file packed-refs.
func (s *references) packed(content io.Reader) error {
	text, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		commit, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !gitignore.IsCommit(commit) || gitignore.Fetched(name) {
			continue
		}
		if err := s.commit(commit, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *references) commit(commit, name string) error {
	if s.home[commit] {
		return nil
	}
	s.work = fmt.Sprintf("commits (up to %.12s)", commit)
	switch {
	case s.dir == "" && name == "refs/stash":
		s.advice = fmt.Sprintf("`agbox exec %s -- git stash pop` takes the newest stash back, for `agbox apply %[1]s`. If that conflicts, git keeps the stash: resolve the files in the sandbox first, or `agbox exec %[1]s -- git stash show -p --binary --include-untracked >FILE` writes it as a patch.", s.sandboxID)
	case s.dir == "" && (name == "HEAD" || name == s.current) && s.base.GetHead() != "":
		s.advice = fmt.Sprintf("`agbox apply %s --branch NAME` brings the commits. Without --branch the files of the work tree come, and so nothing of an empty commit, or of a version that was changed since.", s.sandboxID)
	default:
		s.advice = s.bundle()
	}
	return errUnbrought
}

// bundle says how all commits of a repository come.
func (s *references) bundle() string {
	words := "git"
	if s.dir != "" {
		words = "git -C " + shellWord(s.dir)
	}
	create, fetch := gitignore.Bundle(s.sandboxID, words, s.dir)
	return fmt.Sprintf("`agbox exec %s -- %s`, `agbox cp %[1]s:%[3]s FILE` and in the folder `%[4]s` bring them.", s.sandboxID, create, gitignore.BundleName, fetch)
}

func (s *references) unread() error {
	s.work, s.advice = "references of git (too many or in a form that agbox does not read)", s.bundle()
	return errUnbrought
}

// readAll returns a file or folder of a sandbox as an archive; nil if there is none.
func (r *Review) readAll(ctx context.Context, sandboxID, path string, open Archive) (in io.Reader, done func(), err error) {
	if open != nil {
		out, err := open(ctx, path)
		if errdefs.IsNotFound(err) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		return out, func() { _ = out.Close() }, nil // only read
	}
	t, done, err := r.files.Transfer(ctx, sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(path), Name: []byte(path[strings.LastIndexByte(path, '/')+1:])},
	}})
	switch fault.ReasonOf(err) {
	case agboxv1.ErrorReason_FILE_NOT_FOUND, agboxv1.ErrorReason_NOT_A_DIRECTORY:
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return &stream{t: t}, done, nil
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
