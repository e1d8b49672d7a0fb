package files

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// maxTreeDepth bounds the depth of a tree that is removed: each level uses a
	// descriptor and direntRoom bytes.
	maxTreeDepth = 1024
	// direntRoom is how much of a directory is read at a time, in bytes.
	direntRoom = 4 << 10
	// maxPasses bounds how often a directory is read that is not empty afterwards,
	// because another process may create files in it continuously.
	maxPasses = 64
)

// Remove removes a file, a symbolic link, or a directory. It stops when ctx is
// cancelled, because the caller may then create new files with the same names.
func (s *Service) Remove(ctx context.Context, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	reply := s.do(req, "Removing", func(c *FileCall) error {
		return c.actor.do(func() error {
			dir, base, err := parent(c.path)
			if err != nil {
				return err
			}
			defer closeFD(dir)
			r := removal{ctx}
			if c.GetDeep() {
				return r.tree(dir, base, 0)
			}
			return r.one(dir, base)
		})
	})
	if reply.GetError() != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return reply, nil
}

// removal removes names in open directories. It does not follow symbolic links. It
// fails on a mount point with EBUSY, before it would enter the mounted file system.
type removal struct{ ctx context.Context }

// one removes a file or an empty directory.
func (r removal) one(dir int, name string) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := unix.Unlinkat(dir, name, 0)
	// For a directory, Linux returns EISDIR. POSIX allows EPERM, which also has other
	// causes.
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		rmErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		if !errors.Is(rmErr, unix.ENOTDIR) {
			err = rmErr
		}
	}
	return err
}

// tree removes a name with everything below it. It continues after an error and
// returns the first one.
func (r removal) tree(dir int, name string, depth int) error {
	err := r.one(dir, name)
	if isNotEmpty(err) {
		err = r.directory(dir, name, depth)
		if errors.Is(err, unix.ENOENT) {
			err = nil // another process removed it
		}
	}
	return err
}

func isNotEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

func (r removal) directory(dir int, name string, depth int) error {
	if depth == maxTreeDepth {
		return errTooDeep
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	// The next pass finds entries that were created meanwhile, or that getdents skipped
	// because the directory changed.
	for range maxPasses {
		if err := r.inside(fd, depth); err != nil {
			return err
		}
		if err = r.one(dir, name); !isNotEmpty(err) {
			return err
		}
	}
	return err
}

// inside removes the content of an open directory.
func (r removal) inside(dir, depth int) error {
	if _, err := unix.Seek(dir, 0, io.SeekStart); err != nil {
		return err
	}
	var first error
	buf := make([]byte, direntRoom)
	for {
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return errors.Join(first, err)
		}
		if n == 0 {
			return first
		}
		for rest := buf[:n]; len(rest) > 0; {
			var name string
			name, _, rest = dirent(rest)
			if name == "" || name == "." || name == ".." {
				continue
			}
			err := r.tree(dir, name, depth+1)
			if r.ctx.Err() != nil {
				return r.ctx.Err()
			}
			if first == nil && !errors.Is(err, unix.ENOENT) {
				first = err
			}
		}
	}
}
