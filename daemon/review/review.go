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
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	storev1 "github.com/agbox/agbox/proto/store/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// settled is how long before the end of a copy a file must have its change time to be
	// taken for unchanged: the kernel's times of files are up to 10 ms behind its clock.
	settled = 50 * time.Millisecond
	// maxFile is the maximum size in bytes of a file whose content is read. Larger ones are
	// only listed. maxTotal is that of all contents that one comparison sends, maxChanges the
	// maximum number of changed files, and maxNames that of the bytes of the paths of new files, which are
	// kept in memory.
	maxFile    = 1 << 30
	maxTotal   = 4 << 30
	maxChanges = 200_000
	maxNames   = 64 << 20
	// maxSearched is how many entries of folders are searched for repositories in ignored folders.
	maxSearched = 1_000_000
)

// Transfers makes transfers from sandboxes.
type Transfers interface {
	// Transfer starts a transfer. done must be called at its end.
	Transfer(ctx context.Context, sandboxID string, req *guestv1.TransferRequest) (t *guest.Transfer, done func(), err error)
}

// Review compares workspaces.
type Review struct {
	files Transfers
	paths paths.Install
}

// New makes a Review.
func New(files Transfers, install paths.Install) *Review { return &Review{files, install} }

// Options say what to compare.
type Options struct {
	// All includes new files that are ignored.
	All bool
	// NamesOnly sends no contents. Stat sends how many lines changed instead.
	NamesOnly, Stat bool
	// Once sends each content once.
	Once bool
	// Removal looks for what a removal would lose and no difference shows.
	Removal bool
	// Home sends what came home before.
	Home bool
	// Branch sends also what went to a branch and is in the workspace as in the folder again: the branch
	// has it otherwise.
	Branch bool
	// Index sends which files of the base, and new ones, the index of the workspace's repository does not name.
	Index bool
	// total replaces maxTotal in tests.
	total uint64
}

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

// comparison is one run of Compare. One goroutine uses it.
type comparison struct {
	review    *Review
	sandboxID string
	base      *Base
	o         Options
	send      func(*agboxv1.CompareWorkspaceResponse) error
	// seen has the paths of files that were compared or are in later.
	seen map[string]bool
	// inIndex are the files that git tracks in the workspace. whole is set if all of its index was read.
	inIndex map[string]bool
	whole   bool
	// partIndex is why an index that was written after the copy is not read as a whole, or nil.
	partIndex error
	// twins has the sizes and times that several files of the base have.
	twins map[stamp]bool
	// later are files whose content must be read apart.
	later   []string
	changes int
	// home is what came home before, and removed are files that were removed at home and that no scan
	// has shown.
	home    []*agboxv1.WorkspaceDifference
	removed map[string]bool
	// repositories are those that were sent, and copied the folders of the base; nil before it
	// is asked for.
	repositories, copied map[string]bool
	// ignoredTrees are those in ignored folders that keep their repository elsewhere.
	ignoredTrees []string
	// unsearchedSaid is set once it was said that not all was searched for repositories.
	unsearchedSaid bool
	// names is the number of bytes of the paths of new files.
	names int
	// sent has the digests of the contents that were sent, and total is their size.
	sent  map[string]bool
	total uint64
}

func (r *Review) comparison(sandboxID string, base *Base, o Options, send func(*agboxv1.CompareWorkspaceResponse) error) *comparison {
	c := &comparison{review: r, sandboxID: sandboxID, base: base, o: o, send: send, seen: make(map[string]bool), twins: twins(base), sent: make(map[string]bool), removed: make(map[string]bool)}
	if o.Home {
		for path, copied := range base.Copied() {
			if copied != nil && base.File(path) == nil && !c.foreign(path) {
				c.removed[path] = true
			}
		}
	}
	return c
}

// stamp is by what a file is recognized that has not changed since it was copied. A folder
// may have been renamed, so the path alone is not enough.
type stamp struct {
	size     uint64
	modified int64
}

func twins(base *Base) map[stamp]bool {
	count := make(map[stamp]bool, len(base.GetFiles()))
	for _, f := range base.GetFiles() {
		s := stamp{f.GetSize(), f.GetModified()}
		_, known := count[s]
		count[s] = known
	}
	return count
}

// scan calls each with the files of the workspace.
func (c *comparison) scan(ctx context.Context, scan *guestv1.WorkScan, each func(path string, h *tar.Header, content io.Reader) error) error {
	t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(c.base.GetTarget()), Name: []byte("."), Follow: true, Work: scan},
	}})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_NOT_FOUND {
		return nil // all is removed
	}
	if err != nil {
		return err
	}
	defer done()
	in := &stream{t: t}
	for files := tar.NewReader(in); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, in) // the supervisor's last word
			return err
		}
		if err != nil {
			return in.explain(err)
		}
		path := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if _, more := h.PAXRecords[archive.UnsearchedRecord]; more && scan.GetRepositoriesWithin() > 0 {
			if err := c.unsearched(path); err != nil {
				return err
			}
			continue
		}
		if dir, is := gitignore.Repository(path); is {
			if err := c.repository(dir, h, scan.GetChangedSince() == math.MaxInt64); err != nil {
				return err
			}
			continue
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink || !Valid(path) || c.foreign(path) {
			continue
		}
		if err := each(path, h, files); err != nil {
			return in.explain(err)
		}
	}
}

// stream reads a transfer.
type stream struct {
	t    *guest.Transfer
	rest []byte
	err  error
}

func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 && s.err == nil {
		s.rest, s.err = s.t.Next()
	}
	if len(s.rest) == 0 {
		return 0, s.err
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// explain prefers the error of the transfer to one that follows from it.
func (s *stream) explain(err error) error {
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		return s.err
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return guest.Tampered("it sent a workspace that cannot be decoded", err)
	}
	return err
}

// Valid reports whether a path can be part of the work.
func Valid(path string) bool {
	if path == "" || len(path) > 4095 || strings.IndexByte(path, 0) >= 0 || gitignore.InRepository(path) {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." || len(part) > 255 {
			return false
		}
	}
	return true
}

// foreign reports whether something other than the workspace's copy brought a path in.
func (c *comparison) foreign(path string) bool {
	return slices.ContainsFunc(c.base.GetForeign(), func(dir string) bool {
		return path == dir || strings.HasPrefix(path, dir+"/")
	})
}

// copiedUnrecorded reports whether a file was copied in with a name that no base has: it is no
// work. What the sandbox has under such a name is, and is never brought.
func (c *comparison) copiedUnrecorded(path string, h *tar.Header) bool {
	at, copied := h.ChangeTime, time.Unix(0, c.base.GetCopiedAt())
	if at.IsZero() {
		at, copied = h.ModTime, copied.Truncate(time.Second) // an archive of the engine has whole seconds
	}
	return gitignore.Inside(path) && at.Before(copied)
}

// found compares a file of the first scan.
func (c *comparison) found(path string, h *tar.Header, content io.Reader) error {
	if c.seen[path] || c.copiedUnrecorded(path, h) {
		return nil
	}
	c.seen[path] = true
	if c.base.File(path) == nil {
		c.names += len(path)
	}
	if c.names > maxNames || len(c.seen) > maxChanges+len(c.base.GetFiles()) {
		return c.tooMany()
	}
	if h.Typeflag == tar.TypeSymlink {
		return c.link(path, h.Linkname)
	}
	if size, bare := h.PAXRecords[archive.SizeRecord]; bare && sizeOf(h) <= maxFile {
		if !c.untouched(path, size, h) {
			c.later = append(c.later, path)
		}
		return nil
	}
	return c.file(path, h, content)
}

// untouched reports whether a file that did not change is the one of the base.
func (c *comparison) untouched(path, size string, h *tar.Header) bool {
	f := c.base.File(path)
	if f == nil || c.retracked(path) {
		return false
	}
	n, err := strconv.ParseUint(size, 10, 64)
	s := stamp{f.GetSize(), f.GetModified()}
	return err == nil && f.GetModified() != 0 && n == s.size && h.ModTime.UnixNano() == s.modified && !c.twins[s]
}

// readLater compares files that the scan had no content of.
func (c *comparison) readLater(ctx context.Context) error {
	for _, path := range c.later {
		if err := c.read(ctx, path); err != nil {
			return err
		}
	}
	c.later = nil
	return nil
}

// read compares a file, which is read apart.
func (c *comparison) read(ctx context.Context, path string) error {
	t, done, err := c.review.files.Transfer(ctx, c.sandboxID, &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Out{
		Out: &guestv1.OutTransfer{Path: []byte(c.base.GetTarget() + "/" + path), Name: []byte("f"), Work: &guestv1.WorkScan{MaxSize: maxFile}},
	}})
	if fault.ReasonOf(err) == agboxv1.ErrorReason_FILE_NOT_FOUND || fault.ReasonOf(err) == agboxv1.ErrorReason_NOT_A_DIRECTORY {
		return c.gone(path)
	}
	if err != nil {
		return err
	}
	defer done()
	in := &stream{t: t}
	files := tar.NewReader(in)
	h, err := files.Next()
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return in.explain(err)
	case err != nil:
		return c.gone(path)
	case h.Typeflag == tar.TypeSymlink:
		return c.link(path, h.Linkname)
	case h.Typeflag == tar.TypeReg:
		return in.explain(c.file(path, h, files))
	}
	return c.gone(path)
}

// missing compares the files of the base that the first scan has not shown: they are
// removed or ignored.
func (c *comparison) missing(ctx context.Context) error {
	left := make(map[string]*storev1.BaseFile)
	for _, f := range c.base.GetFiles() {
		if path := string(f.GetPath()); !c.seen[path] && !c.foreign(path) {
			left[path] = f
		}
	}
	maps.DeleteFunc(c.removed, func(path string, _ bool) bool { return c.seen[path] })
	if len(left) == 0 && len(c.removed) == 0 {
		return nil
	}
	if !c.o.All {
		since := c.base.GetCopiedAt() - int64(settled)
		err := c.scan(ctx, &guestv1.WorkScan{ChangedSince: math.MaxInt64}, func(path string, h *tar.Header, _ io.Reader) error {
			delete(c.removed, path) // it is there, and ignored
			if left[path] == nil {
				return nil
			}
			delete(left, path)
			if h.Typeflag == tar.TypeSymlink {
				return c.link(path, h.Linkname)
			}
			if sizeOf(h) > maxFile {
				return c.large(path, h)
			}
			if h.ChangeTime.UnixNano() >= since || !c.untouched(path, h.PAXRecords[archive.SizeRecord], h) {
				c.later = append(c.later, path)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.readLater(ctx); err != nil {
			return err
		}
	}
	for _, f := range c.base.GetFiles() {
		if path := string(f.GetPath()); left[path] != nil {
			if err := c.gone(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *comparison) tooMany() error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The sandbox has more than %d changed files in its workspace, or paths of more than %d MiB: name what is no work in a .gitignore there, or copy with `agbox cp`.", maxChanges, maxNames>>20)
}
