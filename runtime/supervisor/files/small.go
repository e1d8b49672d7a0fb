package files

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Stat describes one file.
func (s *Service) Stat(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Looking at", func(c *FileCall) error {
		flags := unix.O_PATH
		if !c.GetFollow() {
			flags |= unix.O_NOFOLLOW
		}
		var fd int
		err := c.actor.do(func() (err error) { fd, err = open(c.path, flags, 0); return err })
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

// List gives one page of a directory.
func (s *Service) List(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Listing", func(c *FileCall) error {
		return c.actor.do(func() error { return c.list() })
	}), nil
}

// maxPage is the most that a page of a directory takes, in bytes; it stays below
// the limit of a reply by more than one entry.
const maxPage = 32 << 10

func (c *FileCall) list() error {
	fd, err := open(c.path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	// A directory's offsets are cookies of the file system: they hold when it is
	// opened anew, which keeps the listing without a state here.
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
					size += proto.Size(st) + 8
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
		return invalid("cannot be listed from that page on: begin again with the first page")
	}
	return err
}

// MakeDirectory makes a directory.
func (s *Service) MakeDirectory(_ context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	return s.do(req, "Making the directory", func(c *FileCall) error {
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

// makeDir makes one directory with exactly the mode.
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
		return nil // made, but not to be read by its user: the umask has the last word
	}
	defer closeFD(fd)
	return unix.Fchmod(fd, mode)
}

// makeAll makes what is missing of a path. Only the last directory gets the mode.
func makeAll(p string, mode uint32) error {
	fd, err := open(p, unix.O_PATH|unix.O_DIRECTORY, 0)
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
			// Above may be directories that this user may not write.
			if fd, statErr := open(part, unix.O_PATH|unix.O_DIRECTORY, 0); statErr == nil {
				closeFD(fd)
			} else {
				return err
			}
		}
		at = end
	}
	return nil
}

// Move renames.
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
	// A file system without the flag. A link refuses to replace; only then the old name goes.
	if err := unix.Linkat(from, base, dir, name, 0); err != nil {
		return err
	}
	return unix.Unlinkat(from, base, 0)
}
