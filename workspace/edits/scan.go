package edits

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/gitignore"
)

// Shared says which files of a folder a sandbox shares.
type Shared struct {
	// Files are those of the base by path.
	Files map[string]*File
	// Excludes are patterns, as in a .gitignore, and Foreign paths below which nothing is
	// shared.
	Excludes, Foreign []string
}

// Scan is what a folder has changed since the base.
type Scan struct {
	// Changed are the new versions by path: nil if the file was removed.
	Changed map[string]*File
	// Folders are the folders that can have shared files, "." among them.
	Folders []string
	// Large are changed files of more than MaxShared bytes. They are not in Changed.
	Large []string
}

// MaxShared is the maximum size of a file that is kept in step, in bytes.
const MaxShared = 256 << 20

// Scanner scans a folder of this machine. It remembers the files that did not change since
// the last scan. No link is followed, and no other file system entered. One goroutine uses
// it.
type Scanner struct {
	Folder string
	known  map[string]scanned
}

// scanned is a file as it was when its content was read.
type scanned struct {
	stamp
	file *File
}

type stamp struct {
	inode         uint64
	size          int64
	mode          uint32
	modified, was unix.Timespec
}

// settledAfter is how long before a scan a file must have its change time so that the next
// scan need not read it again: the kernel's times of files are up to 10 ms behind its clock.
const settledAfter = 50 * time.Millisecond

// Scan compares the folder with a base.
func (s *Scanner) Scan(ctx context.Context, t Shared) (Scan, error) {
	f, err := openFolder(s.Folder)
	if err != nil {
		return Scan{}, err
	}
	defer f.close()
	ignored, err := gitignore.NewTree(t.Excludes, true)
	if err != nil {
		return Scan{}, err
	}
	w := &scanning{
		ctx: ctx, Shared: t, folder: f, ignored: ignored, old: s.known, known: make(map[string]scanned),
		out: Scan{Changed: make(map[string]*File)}, since: time.Now().Add(-settledAfter), seen: make(map[string]bool),
	}
	err = w.walk(".")
	for name := range t.Files {
		if err == nil && !w.seen[name] && !w.foreign(name) {
			err = w.unseen(name)
		}
	}
	if err != nil {
		return Scan{}, err
	}
	s.known = w.known
	return w.out, nil
}

// scanning is one scan.
type scanning struct {
	Shared
	ctx        context.Context
	folder     *folder
	ignored    *gitignore.Tree
	old, known map[string]scanned
	out        Scan
	since      time.Time
	seen       map[string]bool
}

func (w *scanning) foreign(name string) bool {
	return slices.ContainsFunc(w.Foreign, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
}

// walk scans the files of a folder, then the folders in it.
func (w *scanning) walk(dir string) error {
	below, err := w.files(dir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) {
		return nil // it was replaced meanwhile, or is of another file system
	}
	for _, one := range below {
		if err == nil {
			err = w.walk(one)
		}
	}
	return err
}

// files scans the files of a folder, and returns the folders in it.
func (w *scanning) files(dir string) (below []string, err error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	fd, err := w.folder.at(dir)
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close() // only read
	inTree := dir
	if dir == "." {
		inTree = ""
	}
	if err := w.ignored.Enter(inTree, fd); err != nil {
		return nil, err
	}
	w.out.Folders = append(w.out.Folders, dir)
	entries, err := d.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if !usable(name) || w.foreign(name) {
			continue
		}
		skip, err := w.ignored.Skip(name, e.IsDir())
		switch {
		case err != nil:
			return nil, err
		case skip && w.Files[name] == nil:
		case e.IsDir():
			below = append(below, name)
		default:
			if err := w.file(fd, name); err != nil {
				return nil, err
			}
		}
	}
	return below, nil
}

// file scans one file.
func (w *scanning) file(dir int, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: path.Join(w.folder.path, name), Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFREG && kind != unix.S_IFLNK {
		w.seen[name] = kind != unix.S_IFDIR // a device or the like is left alone
		return nil
	}
	w.seen[name] = true
	now := stamp{st.Ino, st.Size, st.Mode, st.Mtim, st.Ctim}
	if old, ok := w.old[name]; ok && old.stamp == now {
		w.known[name] = old
		w.compare(name, old.file)
		return nil
	}
	if st.Size > MaxShared {
		if base := w.Files[name]; base == nil || base.Size != st.Size {
			w.out.Large = append(w.out.Large, name)
		}
		return nil
	}
	file, err := describe(dir, path.Base(name))
	if errors.As(err, new(*errBlocked)) {
		return nil
	}
	if err != nil {
		return err
	}
	if file != nil && time.Unix(st.Ctim.Unix()).Before(w.since) {
		w.known[name] = scanned{now, file}
	}
	w.compare(name, file)
	return nil
}

func (w *scanning) compare(name string, file *File) {
	if !Same(w.Files[name], file) {
		w.out.Changed[name] = file
	}
}

// unseen scans a file of the base that the walk has not met: it is removed, or in an
// excluded folder.
func (w *scanning) unseen(name string) error {
	dir, err := w.folder.at(path.Dir(name))
	switch {
	case errors.Is(err, unix.EXDEV):
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		w.compare(name, nil)
		return nil
	case err != nil:
		return &os.PathError{Op: "open", Path: path.Join(w.folder.path, path.Dir(name)), Err: err}
	}
	defer unix.Close(dir) // only read
	if err := w.file(dir, name); err != nil || w.seen[name] {
		return err
	}
	w.compare(name, nil)
	return nil
}

// ReadFile returns the content and the version of a file of a folder. It follows no link.
func ReadFile(dir, name string) (*File, []byte, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	var content []byte
	out := new(File)
	err = f.within(name, false, func(dir int, base string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err != nil:
			return err
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			to, err := readlinkat(dir, base)
			out.Link, content = true, []byte(to)
			return err
		case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > MaxShared:
			return &errBlocked{"it is no file of at most 256 MiB"}
		}
		file, err := openRegular(dir, base)
		if err != nil {
			return err
		}
		defer file.Close() // only read
		out.Executable = st.Mode&0o100 != 0
		content, err = io.ReadAll(file)
		return err
	})
	out.Size, out.Sum = int64(len(content)), sha256.Sum256(content)
	return out, content, err
}

// Describe returns the version of a file of a folder, of any size; nil if there is none. It
// follows no link.
func Describe(dir, name string) (*File, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.state(name)
}

// HasFile reports whether a folder has a file at a path, of any kind but a folder. It follows no link.
func HasFile(dir, name string) bool {
	f, err := openFolder(dir)
	if err != nil {
		return false
	}
	defer f.close()
	var st unix.Stat_t
	err = f.within(name, false, func(dir int, base string) error {
		return unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR
}

// HasFolder reports whether a folder has a folder at a path.
func HasFolder(dir, name string) bool {
	f, err := openFolder(dir)
	if err != nil {
		return false
	}
	defer f.close()
	fd, err := f.at(name)
	if err != nil {
		return false
	}
	_ = unix.Close(fd) // only looked at
	return true
}
