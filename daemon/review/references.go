package review

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/workspace/gitignore"
)

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
		s.advice = fmt.Sprintf("`agbox apply %s --branch NAME` brings the commits. Without --branch their files come, and so nothing of an empty commit.", s.sandboxID)
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
	return fmt.Sprintf("`agbox exec %s -- %s bundle create /tmp/all --all` and `agbox cp %[1]s:/tmp/all FILE` put them into a FILE from which git fetches.", s.sandboxID, words)
}

func (s *references) unread() error {
	s.work, s.advice = "references of git (too many or in a form that agbox does not read)", s.bundle()
	return errUnbrought
}

// refs reads references of git while a workspace is packed.
type refs struct {
	// files are those of the repository at the top that head needs.
	files map[string]*strings.Builder
	// current is the file whose content arrives, and name its name; nil if it has no reference.
	current *strings.Builder
	name    string
	// named is what references of all repositories name.
	named map[string]bool
}

// maxRefs is the maximum size of a file with references, in bytes. A larger one is cut. maxNamed is
// how many commits and tags of references are kept.
const (
	maxRefs  = 16 << 20
	maxNamed = 100_000
)

// beginAdvance begins a file.
func (r *refs) begin(name string) {
	r.finish()
	dir, base := path.Split(name)
	if !strings.Contains("/"+dir, "/.git/") || base != "HEAD" && base != "packed-refs" && !strings.Contains(dir, "/refs/") {
		return
	}
	r.current, r.name = new(strings.Builder), name
	if name, ok := strings.CutPrefix(name, ".git/"); ok && (name == "HEAD" || name == "packed-refs" || strings.HasPrefix(name, "refs/heads/")) {
		if r.files == nil {
			r.files = make(map[string]*strings.Builder)
		}
		r.files[name] = r.current
	}
}

func (r *refs) add(data []byte) {
	if r.current != nil && r.current.Len()+len(data) <= maxRefs {
		r.current.Write(data)
	}
}

// finish ends a file.
func (r *refs) finish() {
	if r.current == nil {
		return
	}
	text := r.current.String()
	r.current = nil
	if path.Base(r.name) != "packed-refs" {
		r.note(strings.TrimSpace(text))
		return
	}
	for _, commit := range gitignore.Packed(text) {
		r.note(commit)
	}
}

func (r *refs) note(commit string) {
	if r.named == nil {
		r.named = make(map[string]bool)
	}
	if gitignore.IsCommit(commit) && len(r.named) < maxNamed {
		r.named[commit] = true
	}
}

// all returns what references name, sorted.
func (r *refs) all() []string {
	r.finish()
	return slices.Sorted(maps.Keys(r.named))
}

// head returns the commit that HEAD names, or "".
func (r *refs) head() string {
	commit, _ := gitignore.HeadCommit(func(name string) (string, error) { // without one, commits do not come home
		if f := r.files[name]; f != nil {
			return strings.TrimSpace(f.String()), nil
		}
		return "", nil
	})
	return commit
}
