package files

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Stat describes one file.
func (s *Service) Stat(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Inspecting", func(c *FileCall) error {
		flags := unix.O_PATH
		if !c.GetFollow() {
			flags |= unix.O_NOFOLLOW
		}
		var fd int
		err := c.actor.do(func() (err error) { fd, err = open(c.path, flags); return err })
		if err != nil {
			return err
		}
		defer closeFD(fd)
		st, err := describe(fd, path.Base(c.path))
		if err != nil {
			return err
		}
		real, err := readlink(fd)
		st.RealPath = []byte(real)
		c.reply.Files = append(c.reply.Files, st)
		return err
	}), nil
}

// List returns one page of a directory.
func (s *Service) List(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Listing", func(c *FileCall) error {
		return c.actor.do(func() error { return c.list() })
	}), nil
}

// maxPage is the size in bytes at which a page of a directory ends. It is below the
// limit of a reply by more than one entry.
const maxPage = 32 << 10

func (c *FileCall) list() error {
	fd, err := open(c.path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	// The offsets of a directory are cookies of the file system. They stay valid when
	// the directory is opened again, so pages need no state here.
	if _, err := unix.Seek(fd, int64(c.GetCursor()), io.SeekStart); err != nil {
		return invalidCursor(err)
	}
	limit := int(c.GetLimit())
	if limit <= 0 || limit > 1000 {
		limit = 1000
	}
	buf := make([]byte, 8<<10)
	c.reply.Cursor = c.GetCursor()
	for size := 0; ; {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return invalidCursor(err)
		}
		if n == 0 {
			c.reply.End = true
			return nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			var next uint64
			name, next, rest = dirent(rest)
			if name == "" {
				break
			}
			if name != "." && name != ".." {
				if st, err := describeAt(fd, name); err == nil {
					c.reply.Files = append(c.reply.Files, st)
					size += st.SizeVT() + 8
				}
			}
			c.reply.Cursor = next
			if len(c.reply.Files) >= limit || size >= maxPage {
				return nil
			}
		}
	}
}

func invalidCursor(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return invalid("cannot be listed from this page: begin again with the first page")
	}
	return err
}

// MakeDirectory creates a directory, and missing parents if the request is deep.
func (s *Service) MakeDirectory(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Creating the directory", func(c *FileCall) error {
		mode := uint32(0o755)
		if c.Mode != nil {
			mode = c.GetMode() & 0o7777
		}
		return c.actor.do(func() error {
			if c.GetDeep() {
				return makeAll(c.path, mode)
			}
			return makeDir(c.path, mode)
		})
	}), nil
}

// makeDir creates one directory with exactly the given mode.
func makeDir(p string, mode uint32) error {
	dir, base, err := parent(p)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if err := unix.Mkdirat(dir, base, mode); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // created, but its user cannot open it; the mode stays as the umask made it
	}
	defer closeFD(fd)
	return unix.Fchmod(fd, mode)
}

// makeAll creates the missing directories of a path. Only the last one gets mode.
func makeAll(p string, mode uint32) error {
	fd, err := open(p, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		closeFD(fd)
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	p = strings.TrimRight(p, "/")
	at := 0
	for at < len(p) {
		next := strings.IndexByte(p[at+1:], '/')
		end := len(p)
		if next >= 0 {
			end = at + 1 + next
		}
		want := uint32(0o755)
		if end == len(p) {
			want = mode
		}
		part := p[:end]
		if err := makeDir(part, want); err != nil && !errors.Is(err, unix.EEXIST) {
			// The directory may exist in a parent that this user cannot write.
			if fd, statErr := open(part, unix.O_PATH|unix.O_DIRECTORY); statErr == nil {
				closeFD(fd)
			} else {
				return err
			}
		}
		at = end
	}
	return nil
}

// Move renames a file or directory.
func (s *Service) Move(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Moving", func(c *FileCall) error {
		to, err := clean(c.GetNewPath())
		if err != nil {
			return err
		}
		return c.actor.do(func() error {
			from, base, err := parent(c.path)
			if err != nil {
				return err
			}
			defer closeFD(from)
			dir, name, err := parent(to)
			if err != nil {
				return err
			}
			defer closeFD(dir)
			return rename(from, base, dir, name, c.GetNoReplace())
		})
	}), nil
}

func rename(from int, base string, dir int, name string, noReplace bool) error {
	if !noReplace {
		return unix.Renameat(from, base, dir, name)
	}
	err := unix.Renameat2(from, base, dir, name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// The file system does not support the flag. linkat fails if the new name exists, so
	// the old name is removed only after it succeeded.
	if err := unix.Linkat(from, base, dir, name, 0); err != nil {
		return err
	}
	return unix.Unlinkat(from, base, 0)
}
