// Package review compares the workspace of a sandbox with its base: what
// the sandbox has changed since the workspace was copied in.
//
// The supervisor packs the workspace without the content of files that did not change since
// then. Everything that it says is hostile: names are checked, and contents are hashed here.
package review

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/workspace/gitignore"
)

// Open opens the base of a sandbox, whose workspace may be a copy of another sandbox's, and shows
// what commits have brought (bases.Base.Show). Its errors are fault.Errors.
func (r *Review) Open(sandboxID string, from *agboxv1.DerivedSpec, against agboxv1.WorkBase, commits Commits) (*Base, error) {
	base, err := OpenBase(r.paths.GuestBase(sandboxID))
	if err == nil {
		base.Show(against, commits)
	}
	return base, noBase(sandboxID, from, err)
}

// Summary returns the base of a sandbox without its files. Its errors are fault.Errors.
func (r *Review) Summary(sandboxID string, from *agboxv1.DerivedSpec) (*storev1.WorkspaceBase, error) {
	base, err := BaseSummary(r.paths.GuestBase(sandboxID))
	return base, noBase(sandboxID, from, err)
}

// Begin begins to advance the base of a sandbox, or what went to a branch. Its errors are
// fault.Errors, or that of ctx.
func (r *Review) Begin(ctx context.Context, sandboxID string, from *agboxv1.DerivedSpec, branch bool) (*Advance, error) {
	a, err := BeginAdvance(ctx, r.paths.GuestBase(sandboxID), branch)
	return a, noBase(sandboxID, from, err)
}

// Note makes a file that is too large to be read the base of a sandbox, without its content.
func Note(a *Advance, path string, f *agboxv1.WorkspaceFile) error {
	if f.GetSize() <= maxFile || len(f.GetSha256()) != sha256.Size || f.GetLink() {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "file: only a regular file of more than %d bytes, with its digest, has no content.", maxFile)
	}
	a.Note(path, f.GetExecutable(), f.GetSize(), f.GetSha256(), f.GetModified())
	return nil
}

// noBase says why there is no base. What a program copies from the sandbox of its parent gets none:
// the work of a child is its parent's, which may have changed the same files.
func noBase(sandboxID string, from *agboxv1.DerivedSpec, err error) error {
	if !errors.Is(err, ErrNoBase) {
		return err
	}
	if where := from.GetWorkspace(); where != "" {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE,
			"The workspace of sandbox %[1]s is a copy of that of its parent, agent %[2]s in sandbox %[3]s, and of no folder of this machine: there is nothing to compare with. `agbox cp %[1]s:%[4]s/. FOLDER` copies it out, into a new FOLDER, and `agbox cp FOLDER/. %[3]s:%[4]s` from there into that of the parent.",
			sandboxID, from.GetParent(), from.GetParentSandbox(), where)
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE,
		"No workspace was copied into sandbox %s, so there is nothing to compare with: `agbox cp` copies files out.", sandboxID)
}

// Compare sends each difference between the workspace of a sandbox and its base.
func (r *Review) Compare(ctx context.Context, sandboxID string, base *Base, o Options, send func(*agboxv1.CompareWorkspaceResponse) error) error {
	c := r.comparison(sandboxID, base, o, send)
	scan := &guestv1.WorkScan{Gitignore: !o.All, ChangedSince: base.GetCopiedAt() - int64(settled), MaxSize: maxFile}
	if !o.All {
		scan.ExcludePatterns = base.GetExcludePatterns()
	}
	tracked, err := c.tracked(ctx)
	if err != nil {
		return err
	}
	if err := c.scan(ctx, scan, c.found); err != nil {
		return err
	}
	if err := c.addTracked(ctx, tracked, scan.GetExcludePatterns()); err != nil {
		return err
	}
	if err := c.readLater(ctx); err != nil {
		return err
	}
	if err := c.missing(ctx); err != nil {
		return err
	}
	if err := c.sendIndex(ctx, c.tracked); err != nil {
		return err
	}
	if err := c.sendHome(); err != nil || !o.Removal {
		return err
	}
	if err := c.untold(); err != nil {
		return err
	}
	nothing := func(string, *tar.Header, io.Reader) error { return nil }
	if err := c.scan(ctx, &guestv1.WorkScan{RepositoriesWithin: maxSearched, ChangedSince: math.MaxInt64}, nothing); err != nil {
		return err
	}
	return c.workTrees(ctx, nil)
}

// maxIgnore is the maximum size of all .gitignore files of a workspace, in bytes.
const maxIgnore = 64 << 20

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

// trackedIn is tracked for a sandbox that does not run.
func (s *stopped) trackedIn(ctx context.Context) (all map[string]bool, err error) {
	indexed := func(path string, h *tar.Header, content io.Reader) error {
		if path != "" {
			return nil // a folder is no index
		}
		all, err = s.indexed(h, content)
		return err
	}
	unread := func() bool { return err != nil && ctx.Err() == nil && !errdefs.IsUnavailable(err) }
	if err = s.each(ctx, s.base.GetTarget()+"/.git/index", indexed); unread() {
		var other string
		if other, err = s.indexElsewhere(ctx, s.open); other != "" && err == nil {
			err = s.each(ctx, other, indexed)
		}
	}
	if unread() {
		return nil, nil //nolint:nilerr // .git may be a link in a loop, or name anything: the engine says no more than that it failed
	}
	return all, err
}
