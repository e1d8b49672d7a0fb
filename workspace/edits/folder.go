package edits

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/gitignore"
)

// folder is the folder of the host that work is brought to. Paths below it are opened
// without following any link and without leaving its file system.
type folder struct {
	path string
	fd   int
}

func openFolder(dir string) (*folder, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return &folder{dir, fd}, nil
}

func (f *folder) close() { _ = unix.Close(f.fd) }

// at opens a folder below, "." is the folder itself.
func (f *folder) at(dir string) (int, error) {
	for {
		fd, err := unix.Openat2(f.fd, dir, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return fd, err
		}
	}
}

// errBlocked is the error for a path where there is something else than a regular file or
// a link, or that leads through a file, a link or a mount.
type errBlocked struct{ why string }

func (e *errBlocked) Error() string { return e.why }

// usable reports whether work may have a path at all.
func usable(name string) bool {
	if name == "" || strings.HasPrefix(name, "/") || strings.IndexByte(name, 0) >= 0 || gitignore.Inside(name) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// state describes the file at a path: nil if there is none.
func (f *folder) state(name string) (*File, error) {
	dir, err := f.at(path.Dir(name))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, &errBlocked{"a file or link is in the place of one of its folders"}
	case errors.Is(err, unix.EXDEV):
		return nil, &errBlocked{"it is on another file system"}
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: path.Join(f.path, path.Dir(name)), Err: err}
	}
	defer unix.Close(dir)
	return describe(dir, path.Base(name))
}

// describe describes a file in an open folder.
func describe(dir int, base string) (*File, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: base, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to, err := readlinkat(dir, base)
		return &File{Link: true, Size: int64(len(to)), Sum: sha256.Sum256([]byte(to))}, err
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, &errBlocked{"there is a folder"}
	default:
		return nil, &errBlocked{"there is something that is no file"}
	}
	file, err := openRegular(dir, base)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	out := &File{Executable: st.Mode&0o100 != 0}
	sum := sha256.New()
	out.Size, err = io.Copy(sum, file)
	copy(out.Sum[:], sum.Sum(nil))
	return out, err
}

func openRegular(dir int, base string) (*os.File, error) {
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	return os.NewFile(uintptr(fd), base), nil
}

func readlinkat(dir int, base string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, base, buf)
	return string(buf[:max(n, 0)]), err
}

// read returns the content of the file at a path.
func (f *folder) read(name string) ([]byte, error) {
	dir, err := f.at(path.Dir(name))
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	file, err := openRegular(dir, path.Base(name))
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	return io.ReadAll(file)
}

// within calls fn with the opened folder of a path and the last part of the path. It makes
// missing folders if asked.
func (f *folder) within(name string, make bool, fn func(dir int, base string) error) error {
	at := path.Dir(name)
	if make && at != "." {
		for i := 0; i <= len(at); i++ {
			if i < len(at) && at[i] != '/' {
				continue
			}
			err := f.within(at[:i], false, func(dir int, base string) error { return unix.Mkdirat(dir, base, 0o777) })
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
	}
	dir, err := f.at(at)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	defer unix.Close(dir)
	return fn(dir, path.Base(name))
}

// filesIn lists the files below a folder, up to a number of them.
func (f *folder) filesIn(dir string, most int) ([]string, error) {
	fd, err := f.at(dir)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close() // only read
	entries, err := d.ReadDir(-1)
	var all []string
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if !e.IsDir() {
			all = append(all, name)
		} else if len(all) < most {
			below, err := f.filesIn(name, most-len(all))
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
		if len(all) >= most {
			break
		}
	}
	return all, err
}

func ignoreBlocked(err error) error {
	if errors.As(err, new(*errBlocked)) {
		return nil
	}
	return err
}
