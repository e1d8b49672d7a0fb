package files

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// packing is a transfer of a tree out of the sandbox.
type packing struct {
	*guestv1.OutTransfer
	actor *actor
	dir   int
	base  string
	name  string
}

func (p *packing) begin() (*guestv1.FileStat, error) {
	from := string(p.GetPath())
	var st *guestv1.FileStat
	err := p.actor.do(func() (err error) {
		flags := unix.O_PATH
		if !p.GetFollow() && !strings.HasSuffix(from, "/") {
			flags |= unix.O_NOFOLLOW
		}
		fd, err := open(from, flags)
		if err != nil {
			return err
		}
		if st, err = describe(fd, path.Base(from)); err != nil {
			closeFD(fd)
			return err
		}
		if st.GetMode()&unix.S_IFMT == unix.S_IFDIR {
			p.dir = fd // fd is the root of the tree
			return nil
		}
		defer closeFD(fd)
		if p.GetFollow() {
			if from, err = readlink(fd); err != nil {
				return err
			}
		}
		p.dir, p.base, err = parent(from)
		return err
	})
	p.name = string(p.GetName())
	if p.name == "" {
		p.name = path.Base(path.Clean(string(p.GetPath())))
	}
	switch {
	case err != nil:
	case p.name == "/":
		p.name = "."
	case p.name == ".." || strings.ContainsAny(p.name, "/\x00") || p.name == "." && p.base != "":
		err = invalid("cannot be packed under the name %s", show([]byte(p.name)))
	}
	return st, err
}

func (p *packing) run(ctx context.Context, pipe *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error) {
	out := bufio.NewWriterSize(metered{pipe, moved}, rpc.MaxChunk)
	options := archive.PackOptions{Name: p.name, Do: p.actor.do, Filter: kernelFiles{}}
	err := scanWork(p.GetWork(), &options)
	switch most := p.GetWork().GetRepositoriesWithin(); {
	case err != nil:
	case most > 0 && p.base == "":
		err = packRepositories(ctx, p.actor, out, p.dir, most)
	default:
		err = archive.Pack(ctx, out, p.dir, p.base, options)
	}
	if err == nil {
		err = out.Flush()
	}
	return new(guestv1.TransferEnd), errors.Join(err, pipe.End())
}

// kernelFiles excludes /proc and /sys from a copy that begins above them: their files
// do not belong to the sandbox, and many of them cannot be read.
type kernelFiles struct{}

// Enter skips a directory of the file systems proc and sysfs.
func (kernelFiles) Enter(name string, dir int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil || name == "" {
		return err
	}
	if st.Type == unix.PROC_SUPER_MAGIC || st.Type == unix.SYSFS_MAGIC {
		return fs.SkipDir
	}
	return nil
}

// Skip excludes nothing else.
func (kernelFiles) Skip(string, bool) (bool, error) { return false, nil }

func (p *packing) close() {
	if p.dir >= 0 {
		closeFD(p.dir)
		p.dir = -1
	}
}

// unpacking is a transfer of a tree into the sandbox.
type unpacking struct {
	*guestv1.InTransfer
	actor *actor
	dir   int
}

func (u *unpacking) begin() (*guestv1.FileStat, error) {
	return nil, u.actor.do(func() (err error) {
		u.dir, err = open(string(u.GetPath()), unix.O_RDONLY|unix.O_DIRECTORY)
		return err
	})
}

func (u *unpacking) run(ctx context.Context, pipe *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error) {
	got, err := archive.Unpack(ctx, metered{pipe, moved}, u.dir, archive.UnpackOptions{
		Only: string(u.GetOnly()), KeepOwner: !u.GetNoOwner() && u.actor.root(), KeepPrivileges: true,
		Special: archive.Special(u.GetSpecial()), Do: u.actor.do,
		Wanted: func() error { return wanted(ctx, pipe) },
	})
	return &guestv1.TransferEnd{Files: uint64(got.Files), Bytes: uint64(got.Bytes), Skipped: uint64(got.Skipped)}, err
}

func (u *unpacking) close() {
	if u.dir >= 0 {
		closeFD(u.dir)
		u.dir = -1
	}
}

// scanWork changes the options of a copy out to those of a scan; nil changes nothing.
func scanWork(scan *guestv1.WorkScan, o *archive.PackOptions) error {
	if scan == nil {
		return nil
	}
	tree, err := gitignore.NewTree(scan.GetExcludePatterns(), scan.GetGitignore())
	if err != nil {
		return unusable(err)
	}
	since := time.Unix(0, scan.GetChangedSince())
	o.Filter = workFiles{tree}
	o.Changed = func(changed time.Time, size int64) bool {
		return !changed.Before(since) && (scan.GetMaxSize() == 0 || uint64(size) <= scan.GetMaxSize())
	}
	return nil
}

// workFiles excludes what is no work.
type workFiles struct{ tree *gitignore.Tree }

// Enter reads the folder's own .gitignore.
func (w workFiles) Enter(name string, dir int) error {
	if gitignore.InRepository(name) {
		return fs.SkipDir
	}
	if err := (kernelFiles{}).Enter(name, dir); err != nil {
		return err
	}
	return unusable(w.tree.Enter(name, dir))
}

// Skip excludes the inside of repositories, and what the patterns name. That there is a repository
// below the top is packed.
func (w workFiles) Skip(name string, isDir bool) (bool, error) {
	if _, nested := gitignore.Repository(name); gitignore.InRepository(name) && !nested {
		return true, nil
	}
	skip, err := w.tree.Skip(name, isDir)
	return skip, unusable(err)
}

// unusable explains an error of patterns, which are as hostile as all files in here.
func unusable(err error) error {
	var bad *gitignore.FileError
	if errors.As(err, &bad) {
		return invalid("cannot be compared, because patterns of ignored files cannot be used (%v)", bad)
	}
	return err
}
