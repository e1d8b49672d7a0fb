package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// deepest is how many folders below each other are searched for repositories.
const deepest = 100

// repositories packs that there are entries .git below a folder, and nothing else. It reads the
// names in folders, and no file.
type repositories struct {
	ctx   context.Context
	actor *actor
	out   *tar.Writer
	// left is how many entries may still be read, and device where all of them are.
	left   uint64
	device uint64
}

// errEnough ends a search that may not look at more.
var errEnough = errors.New("there are more entries than are searched")

// packRepositories packs the repositories below a folder, and which of it was not searched.
func packRepositories(ctx context.Context, a *actor, w io.Writer, dir int, most uint64) error {
	r := &repositories{ctx: ctx, actor: a, out: tar.NewWriter(w), left: most}
	top, err := r.open(dir, ".")
	if err == nil {
		err = r.search(top, "", 0)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return r.out.Close()
}

// open opens a folder. The file is nil if there is none, or if it is on another file system.
func (r *repositories) open(dir int, base string) (f *os.File, err error) {
	err = r.actor.do(func() error {
		fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || base != "." && st.Dev != r.device {
			closeFD(fd)
			return err
		}
		r.device = st.Dev
		f = os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd)) // ReadDir asks there if a file system does not say kinds
		return nil
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	return f, err
}

// search packs what is below an open folder, and closes it.
func (r *repositories) search(dir *os.File, name string, depth int) error {
	defer dir.Close() // was only read
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		var entries []fs.DirEntry
		err := r.actor.do(func() (err error) {
			entries, err = dir.ReadDir(512)
			return err
		})
		for _, e := range entries {
			if r.left == 0 {
				return errors.Join(r.unsearched(name), errEnough)
			}
			r.left--
			if err := r.entry(dir, name, e, depth); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return r.unsearched(name)
		}
	}
}

func (r *repositories) entry(dir *os.File, name string, e fs.DirEntry, depth int) error {
	path := e.Name()
	if name != "" {
		path = name + "/" + path
	}
	if _, is := gitignore.Repository(path); is {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Format: tar.FormatPAX}
		if e.IsDir() {
			h.Typeflag, h.Name = tar.TypeDir, path+"/"
		}
		return r.out.WriteHeader(h)
	}
	if !e.IsDir() || gitignore.InRepository(e.Name()) {
		return nil
	}
	if depth == deepest {
		return r.unsearched(path)
	}
	below, err := r.open(int(dir.Fd()), e.Name())
	if err != nil {
		return r.unsearched(path)
	}
	if below == nil {
		return nil
	}
	return r.search(below, path, depth+1)
}

// unsearched packs that a folder has more than was looked at.
func (r *repositories) unsearched(name string) error {
	if name == "" {
		name = "."
	}
	return r.out.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, Format: tar.FormatPAX, PAXRecords: map[string]string{archive.UnsearchedRecord: "1"},
	})
}
