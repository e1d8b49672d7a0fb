package archive

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Pack writes the file or tree with the given name in the directory dir to w, as a
// complete tar archive. It does not follow symbolic links; they are packed as links. An
// empty name packs dir itself. Sockets, locks of git and files that disappear meanwhile are omitted. A
// file that shrinks meanwhile is padded with zeros. Files in /proc and /sys do not
// report their size: they are packed up to 64 KiB, and Pack fails on a larger one.
func Pack(ctx context.Context, w io.Writer, dir int, name string, o PackOptions) error {
	p := &packer{ctx: ctx, o: o, tar: recorded{tar.NewWriter(w), o.Record}, buf: make([]byte, chunk), links: make(map[inode]string)}
	if o.Progress == nil {
		p.o.Progress = func(int64, int64) {}
	}
	if err := p.packTop(dir, name); err != nil {
		return err
	}
	return p.tar.Close()
}

func (p *packer) packTop(dir int, name string) error {
	if name != "" {
		return p.pack(dir, name, p.o.Name)
	}
	var e entry
	err := p.o.Do.run(func() (err error) {
		e.fd, err = unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Fstat(e.fd, &e.st)
		}
		return err
	})
	if err != nil {
		return failed("open", p.o.Name, err)
	}
	return p.directory(&e, p.o.Name)
}

// pack packs one file, or a directory with its content.
func (p *packer) pack(dir int, base, name string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	e := entry{fd: -1}
	err := p.o.Do.run(func() error { return e.open(dir, base, p.buf, p.o.Changed) })
	switch {
	case errors.Is(err, unix.ENOENT) && p.depth > 0:
		return nil
	case err != nil:
		return failed("read", name, err)
	}
	if skip, err := p.skip(&e, name); skip || err != nil {
		if e.fd >= 0 {
			_ = unix.Close(e.fd)
		}
		return failed("pack", name, err)
	}
	switch e.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return p.directory(&e, name)
	case unix.S_IFREG:
		if e.fd >= 0 {
			defer func() { _ = unix.Close(e.fd) }()
		}
		if p.o.Replace != nil && p.depth > 0 {
			if f, err := p.o.Replace(p.below(name)); f != nil || err != nil {
				return p.replaced(f, name, err)
			}
		}
		return p.regular(&e, name)
	case unix.S_IFSOCK:
		return nil
	}
	p.o.Progress(1, 0)
	h := p.header(&e, name)
	p.linked(&e, h)
	return failed("pack", name, p.tar.WriteHeader(h))
}

// directory packs a directory with its content, and closes it.
func (p *packer) directory(e *entry, name string) error {
	dir := os.NewFile(uintptr(e.fd), name)
	defer dir.Close() // was only read
	dirs := []opened{{dir, p.o.Filter}}
	if f := p.o.Filter; f != nil {
		err := p.o.Do.run(func() error { return f.Enter(p.below(name), e.fd) })
		switch {
		case errors.Is(err, fs.SkipDir):
			dirs = nil
		case err != nil:
			return failed("read", name, err)
		}
	}
	return p.folder(e, name, dirs)
}

// folder packs a directory with the content of several.
func (p *packer) folder(e *entry, name string, dirs []opened) error {
	p.o.Progress(1, 0)
	if err := p.tar.WriteHeader(p.header(e, name)); err != nil {
		return failed("pack", name, err)
	}
	if p.depth++; p.depth > maxDepth {
		return failed("pack", name, unix.ENAMETOOLONG)
	}
	defer func() { p.depth-- }()
	below := name + "/"
	if name == "." {
		below = ""
	}
	return p.content(dirs, name, below)
}

// replaced packs a Folder, unless there was an error.
func (p *packer) replaced(f *Folder, name string, err error) error {
	if err != nil {
		return failed("pack", name, err)
	}
	outer := p.o
	defer func() { p.o = outer }()
	p.o.Replace = nil
	dirs := make([]opened, len(f.Parts))
	for i, part := range f.Parts {
		dirs[i] = opened{os.NewFile(uintptr(part.Dir), name), partFilter{strings.TrimPrefix(p.below(name)+"/", "/"), part.Skip}}
		defer dirs[i].Close() // only read
	}
	var e entry
	if err := unix.Fstat(f.Parts[0].Dir, &e.st); err != nil {
		return failed("read", name, err)
	}
	if err := p.folder(&e, name, dirs); err != nil {
		return err
	}
	for _, file := range f.Files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name + "/" + file.Name, Mode: 0o644, Size: int64(len(file.Data)), ModTime: time.Now(), Format: tar.FormatPAX}
		if o := p.o.Owner; o != nil {
			h.Uid, h.Gid = o.UID, o.GID
		}
		if err := p.tar.WriteHeader(h); err != nil {
			return failed("pack", h.Name, err)
		}
		if _, err := p.tar.Write(file.Data); err != nil {
			return err
		}
		p.o.Progress(1, h.Size)
	}
	return nil
}

// gitReferences and then gitLast are the names that are packed after all others of a folder, in this order. Git
// writes an object before what refers to it, and moves references to packed-refs, and loose objects to packs. So
// what refers, and what is moved, is packed first: a copy beside a "git gc" or a commit has all that it refers to.
// The index follows HEAD: with an older one the next commit would take back what HEAD has. Shallow says where
// history ends, and git changes it before references and after objects.
var (
	gitReferences = []string{"HEAD", "refs", "packed-refs", "shallow"}
	gitLast       = []string{"index", sharedIndex, "objects", "pack"}
)

// sharedIndex begins the names of the parts of a split index, which it names. Git makes one before it writes the index.
const sharedIndex = "sharedindex."

// gitTries is how often something of a repository is packed while git goes on to replace it.
const gitTries = 6

// ErrGitBusy is the error for a repository that git changes all the time.
var ErrGitBusy = errors.New("git changed it while it was read")

// content packs what is in directories. below is the beginning of the names.
func (p *packer) content(dirs []opened, name, below string) error {
	last := false
	for _, dir := range dirs {
		if path.Base(name) == "pack" && path.Base(path.Dir(name)) == "objects" {
			return p.packs(dir.File, name, below)
		}
		err := p.list(dir.File, name, func(base string) error {
			if slices.Contains(gitReferences, base) || slices.Contains(gitLast, base) || strings.HasPrefix(base, sharedIndex) {
				last = true
				return nil
			}
			return p.packFrom(dir, base, below)
		})
		if err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	if err := p.references(dirs, below); err != nil {
		return err
	}
	return p.named(gitLast, dirs, below)
}

// references packs the references of a repository, and again if HEAD changes meanwhile: the branch that the copy
// names may have been renamed or removed before it was packed.
func (p *packer) references(dirs []opened, below string) error {
	for range gitTries {
		before := p.heads(dirs, below)
		if err := p.named(gitReferences, dirs, below); err != nil || slices.Equal(before, p.heads(dirs, below)) {
			return err
		}
	}
	return failed("read", below+"HEAD", ErrGitBusy)
}

// heads returns the version of HEAD in each directory of a folder .git, the zero value if it names no branch.
func (p *packer) heads(dirs []opened, below string) []unix.Stat_t {
	all := make([]unix.Stat_t, len(dirs))
	for i, dir := range dirs {
		if !strings.Contains("/"+below, "/.git/") {
			break
		}
		if dir.filter != nil {
			if skip, err := dir.filter.Skip(p.below(below+"HEAD"), false); skip || err != nil {
				continue // it is not copied: a work tree has its own
			}
		}
		e := entry{fd: -1}
		err := p.o.Do.run(func() error { return e.open(int(dir.Fd()), "HEAD", p.buf, nil) })
		if err == nil && bytes.HasPrefix(p.buf[:e.head], []byte("ref:")) {
			all[i], all[i].Atim = e.st, unix.Timespec{} // reading changes it
		}
		if e.fd >= 0 {
			_ = unix.Close(e.fd) // only read
		}
	}
	return all
}

// named packs files of directories in the order of their names, if there are any.
func (p *packer) named(names []string, dirs []opened, below string) error {
	for _, base := range names {
		for _, dir := range dirs {
			pack := p.packFrom
			if base == sharedIndex {
				pack = p.packAll
			}
			if err := pack(dir, base, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// packAll packs the files of a directory whose names begin with a text.
func (p *packer) packAll(dir opened, prefix, below string) error {
	return p.list(dir.File, below, func(base string) error {
		if !strings.HasPrefix(base, prefix) {
			return nil
		}
		return p.packFrom(dir, base, below)
	})
}

// packFrom packs a file of a directory.
func (p *packer) packFrom(dir opened, base, below string) error {
	p.o.Filter = dir.filter
	return p.pack(int(dir.Fd()), base, below+base)
}

// packIndex names the packs of its folder. Git replaces or removes it before it removes one of them.
const packIndex = "multi-pack-index"

// packs packs the packs of a repository until a list of them has no new one: git may have moved what was in
// one to another that was not there yet. The index follows, and a list that has none that it could name.
func (p *packer) packs(dir *os.File, name, below string) error {
	had, indexed := make(map[string]bool), false
	for range gitTries {
		again := false
		err := p.list(dir, name, func(base string) error {
			if had[base] || base == packIndex {
				return nil
			}
			had[base] = true
			again = again || strings.HasPrefix(base, "pack-")
			return p.pack(int(dir.Fd()), base, below+base)
		})
		if err != nil || indexed && !again {
			return err
		}
		if indexed = !again; indexed {
			err = p.pack(int(dir.Fd()), packIndex, below+packIndex)
		}
		if err != nil {
			return err
		}
	}
	return failed("list", name, ErrGitBusy)
}

// list calls do for each name in a directory. One that is removed meanwhile has no more.
func (p *packer) list(dir *os.File, name string, do func(base string) error) error {
	for again := false; ; again = true {
		var names []string
		err := p.o.Do.run(func() (err error) {
			if !again {
				_, err = dir.Seek(0, io.SeekStart) // it may have been listed before
			}
			if err == nil {
				names, err = dir.Readdirnames(512) // in pieces, so a directory of millions needs little memory
			}
			return err
		})
		for _, base := range names {
			if err := do(base); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ENOENT) && p.depth > 1:
			return nil
		case err != nil:
			return failed("list", name, err)
		}
	}
}
