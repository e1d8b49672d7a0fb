package review

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/workspace/gitignore"
)

// maxIgnore is the maximum size of all .gitignore files of a workspace, in bytes.
const maxIgnore = 64 << 20

// Archive returns a file or folder of a container that does not run, as the engine packs it:
// without change times, and with names below that of the file or folder itself. Its error is
// an errdefs.ErrNotFound if there is none.
type Archive func(ctx context.Context, path string) (io.ReadCloser, error)

// CompareStopped is Compare for a sandbox that does not run. It reads all files, and starts
// nothing.
func (r *Review) CompareStopped(ctx context.Context, sandboxID string, base *Base, o Options, open Archive, send func(*agboxv1.CompareWorkspaceResponse) error) error {
	c := r.comparison(sandboxID, base, o, send)
	s := &stopped{comparison: c, open: open}
	if err := s.compare(ctx); err != nil {
		return err
	}
	for _, path := range c.later {
		if err := s.one(ctx, path); err != nil {
			return err
		}
	}
	for _, f := range base.GetFiles() {
		if path := string(f.GetPath()); !c.seen[path] && !c.foreign(path) {
			if err := c.gone(path); err != nil {
				return err
			}
		}
	}
	if err := c.sendIndex(ctx, s.trackedIn); err != nil {
		return err
	}
	if err := c.sendHome(); err != nil {
		return err
	}
	if err := c.untold(); err != nil {
		return err
	}
	return c.workTrees(ctx, open)
}

// stopped is a comparison with the archive of a container that does not run.
type stopped struct {
	*comparison
	open Archive
	// ignored are the .gitignore files by their folders; size is the total of their bytes.
	ignored map[string]string
	size    int64
	tree    *gitignore.Tree
	// skipped is the folder that was excluded last, with what is below it.
	skipped string
	// tracked is what git tracks.
	tracked map[string]bool
}

// compare compares all files except further names of files that have several.
func (s *stopped) compare(ctx context.Context) error {
	var excludes []string
	var err error
	if !s.o.All {
		excludes = s.base.GetExcludePatterns()
		s.ignored = make(map[string]string)
		if err := s.each(ctx, s.base.GetTarget(), s.collect); err != nil {
			return err
		}
	}
	if s.tracked, err = s.trackedIn(ctx); err != nil {
		return err
	}
	if s.tree, err = gitignore.NewTree(excludes, !s.o.All); err != nil {
		return unusable(err)
	}
	return s.each(ctx, s.base.GetTarget(), s.entry)
}

// each calls f with each entry of an archive. The top has the path "".
func (s *stopped) each(ctx context.Context, path string, f func(path string, h *tar.Header, content io.Reader) error) error {
	stream, err := s.open(ctx, path)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer stream.Close() // only read
	for files := tar.NewReader(stream); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the engine's archive: %w", err)
		}
		_, below, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		if _, nested := gitignore.Repository(below); below != "" && !nested && !Valid(below) || s.foreign(below) {
			continue
		}
		if err := f(below, h, files); err != nil {
			return err
		}
	}
}

// collect keeps the .gitignore files.
func (s *stopped) collect(path string, h *tar.Header, content io.Reader) error {
	dir, is := strings.CutSuffix("/"+path, "/.gitignore")
	if !is || h.Typeflag != tar.TypeReg {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(content, gitignore.MaxFile+1))
	if s.size += int64(len(text)); err == nil && s.size > maxIgnore {
		return unusable(&gitignore.FileError{Dir: strings.TrimPrefix(dir, "/"), Err: fmt.Errorf("all together they have more than %d MiB", maxIgnore>>20)})
	}
	s.ignored[strings.TrimPrefix(dir, "/")] = string(text)
	return err
}

// entry compares an entry of the workspace.
func (s *stopped) entry(path string, h *tar.Header, content io.Reader) error {
	folder := h.Typeflag == tar.TypeDir
	skip := s.skipped != "" && strings.HasPrefix(path, s.skipped+"/")
	if path != "" && !skip {
		var err error
		if skip, err = s.tree.Skip(path, folder); err != nil {
			return unusable(err)
		}
		if skip && folder {
			s.skipped = path
		}
	}
	if dir, is := gitignore.Repository(path); is {
		return s.repository(dir, h, skip)
	}
	switch {
	case folder && !skip:
		return unusable(s.tree.EnterText(path, s.ignored[path]))
	case folder || path == "" || s.seen[path]:
		return nil
	}
	delete(s.removed, path)
	switch {
	case skip && s.base.File(path) == nil && !s.tracked[path], s.copiedUnrecorded(path, h):
		return nil
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink && h.Typeflag != tar.TypeLink:
		return nil
	}
	s.seen[path] = true
	if len(s.seen) > maxChanges+len(s.base.GetFiles()) {
		return s.tooMany()
	}
	return s.content(path, h, content)
}

// content compares a file. A further name of a file is read later: it has no content here.
func (s *stopped) content(path string, h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeLink:
		s.later = append(s.later, path)
		return nil
	case tar.TypeSymlink:
		return s.link(path, h.Linkname)
	}
	return s.file(path, h, content)
}

// one compares a file that is read apart.
func (s *stopped) one(ctx context.Context, path string) error {
	found := false
	err := s.each(ctx, s.base.GetTarget()+"/"+path, func(_ string, h *tar.Header, content io.Reader) error {
		if found || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			return nil
		}
		found = true
		return s.content(path, h, content)
	})
	if err == nil && !found {
		err = s.gone(path)
	}
	return err
}

// Archived sends a file or folder of a container that does not run as an archive of folders and
// regular files. name is what it is called there.
func Archived(ctx context.Context, path, name string, open Archive, send func([]byte) error) error {
	stream, err := open(ctx, path)
	if errdefs.IsNotFound(err) {
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "There is no %q in the sandbox.", path)
	}
	if err != nil {
		return err
	}
	defer stream.Close() // only read
	out := tar.NewWriter(pieces(send))
	for files := tar.NewReader(stream); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("read the engine's archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue
		}
		_, below, _ := strings.Cut(strings.TrimSuffix(h.Name, "/"), "/")
		err = out.WriteHeader(&tar.Header{Typeflag: h.Typeflag, Name: strings.TrimSuffix(name+"/"+below, "/"), Size: h.Size, Mode: h.Mode & 0o777})
		if err == nil {
			_, err = io.Copy(out, files)
		}
		if err != nil {
			return err
		}
	}
}

// unusable explains an error of patterns of ignored files; nil is nil.
func unusable(err error) error {
	if err == nil || !errors.As(err, new(*gitignore.FileError)) {
		return err
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The workspace cannot be compared, because patterns of ignored files cannot be used (%v): correct them in the sandbox, or do without them: `agbox diff --all`, `agbox apply --all`.", err)
}
