package review

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/agbox/agbox/internal/gitignore"
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
	// work is what was found.
	work string
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
			if h.Typeflag == tar.TypeDir || h.ModTime.Before(s.copied) || fetched(h.Name) || strings.HasSuffix(h.Name, ".lock") {
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
	file, is, err := s.text(ctx, own)
	if err != nil || !is {
		return own, own, err
	}
	name, is := strings.CutPrefix(file, "gitdir:")
	if !is {
		return "", "", nil // git does not take it for a repository
	}
	own = below(dir, strings.TrimSpace(name))
	shared, is, err := s.text(ctx, own+"/commondir")
	if err != nil || !is {
		return own, own, err
	}
	return own, below(own, shared), nil
}

// below returns the path of what a file of git in a folder names.
func below(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}

// text returns the text of a small file. It reports whether there is such a file.
func (s *references) text(ctx context.Context, name string) (text string, is bool, err error) {
	err = s.each(ctx, name, func(h *tar.Header, content io.Reader) error {
		if is = h.Typeflag == tar.TypeReg && h.Name == path.Base(name); is {
			text, err = s.small(content)
		}
		if err == nil {
			err = io.EOF // nothing else is wanted
		}
		return err
	})
	return text, is, err
}

// small reads a file with one line.
func (s *references) small(content io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(content, maxRef+1))
	if err == nil && len(text) > maxRef {
		err = s.unread()
	}
	return strings.TrimSpace(string(text)), err
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
	text, err := s.small(content)
	switch {
	case err != nil:
		return err
	case gitignore.IsCommit(text):
		return s.commit(text)
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
		if !gitignore.IsCommit(commit) || fetched(name) {
			continue
		}
		if err := s.commit(commit); err != nil {
			return err
		}
	}
	return nil
}

// fetched reports whether git keeps under a name what it has from another repository.
func fetched(name string) bool {
	return strings.HasPrefix(name, "refs/remotes/") || strings.HasPrefix(name, "refs/prefetch/")
}

func (s *references) commit(commit string) error {
	if s.home[commit] {
		return nil
	}
	s.work = fmt.Sprintf("commits (up to %.12s)", commit)
	return errUnbrought
}

func (s *references) unread() error {
	s.work = "references of git (too many or in a form that agbox does not read)"
	return errUnbrought
}
