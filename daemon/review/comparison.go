package review

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
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

func (c *comparison) tooMany() error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The sandbox has more than %d changed files in its workspace, or paths of more than %d MiB: name what is no work in a .gitignore there, or copy with `agbox cp`.", maxChanges, maxNames>>20)
}

// Archive returns a file or folder of a container that does not run, as the engine packs it:
// without change times, and with names below that of the file or folder itself. Its error is
// an errdefs.ErrNotFound if there is none.
type Archive func(ctx context.Context, path string) (io.ReadCloser, error)

// unusable explains an error of patterns of ignored files; nil is nil.
func unusable(err error) error {
	if err == nil || !errors.As(err, new(*gitignore.FileError)) {
		return err
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST,
		"The workspace cannot be compared, because patterns of ignored files cannot be used (%v): correct them in the sandbox, or do without them: `agbox diff --all`, `agbox apply --all`.", err)
}
