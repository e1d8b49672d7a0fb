package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Special says what to do with devices and FIFOs.
type Special int

// The possible treatments of devices and FIFOs.
const (
	RefuseSpecial Special = iota
	SkipSpecial
	MakeSpecial
)

// UnpackOptions says how to unpack.
type UnpackOptions struct {
	// Only is the only name that the archive may have at its top level; empty allows any.
	Only string
	// KeepOwner sets the numeric owners in the archive. Without it, files belong to the
	// user that creates them.
	KeepOwner bool
	// KeepPrivileges keeps setuid, setgid and the capabilities of programs.
	KeepPrivileges bool
	Special        Special
	// NoDevices skips devices even with MakeSpecial, which then makes only FIFOs.
	NoDevices bool
	// Do runs everything that accesses files.
	Do Do
	// Wanted is called within Do before anything is created or replaced; an error ends
	// the unpacking. Nil means ctx.Err.
	Wanted func() error
	// Progress works as in PackOptions.
	Progress func(files, bytes int64)
	// Hold is called with each entry before it is made or replaces a file. If it returns true,
	// the entry is left out, and then it may have read the content. It may be nil.
	Hold func(h *tar.Header, name string, content io.Reader) (bool, error)
}

// Unpacked counts what was unpacked.
type Unpacked struct {
	Files, Bytes, Skipped int64
}

// maxSparse is the maximum size of a sparse file, in bytes. A few bytes of an archive can
// claim exabytes of holes, which the tar reader delivers as zeros.
const maxSparse = 64 << 30

// Unpack reads a tar archive to its end and unpacks it below the directory dir. It does
// not close dir, nor change its owner, mode and times. An entry replaces an existing file
// of the same name. A directory never replaces another kind of file, and is never
// replaced by one. After an error, the files unpacked so far remain.
//
// Errors of the archive are Refusals and those of files are Failures. Errors of r are
// returned unchanged.
func Unpack(ctx context.Context, r io.Reader, dir int, o UnpackOptions) (Unpacked, error) {
	u := &unpacker{ctx: ctx, o: o, dirs: newDirStack(dir), src: &source{r: r}, buf: make([]byte, chunk)}
	if o.Progress == nil {
		u.o.Progress = func(int64, int64) {}
	}
	if o.Wanted == nil {
		u.o.Wanted = ctx.Err
	}
	u.tar = tar.NewReader(u.src)
	err := u.all()
	// Close the directories after an error too: that sets their times.
	err = errors.Join(err, o.Do.run(u.dirs.close))
	return u.done, err
}

// source records errors of the reader, to distinguish them from those of the archive.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

type unpacker struct {
	ctx  context.Context
	o    UnpackOptions
	dirs *dirStack
	src  *source
	tar  *tar.Reader
	buf  []byte
	done Unpacked
}

func (u *unpacker) all() error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := u.tar.Next()
		switch {
		case errors.Is(err, io.EOF):
			return u.drain()
		case err != nil:
			return u.damaged(err)
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
}

// do runs fn within Do if the unpacking is still wanted.
func (u *unpacker) do(fn func() error) error {
	return u.o.Do.run(func() error {
		if err := u.o.Wanted(); err != nil {
			return err
		}
		return fn()
	})
}

// drain reads what follows the end of the archive. The sender may still be writing the
// padding, and its write would fail if nobody read it.
func (u *unpacker) drain() error {
	_, err := io.CopyBuffer(io.Discard, u.src, u.buf)
	return err
}

func (u *unpacker) damaged(err error) error {
	if u.src.err != nil {
		return u.src.err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("", "ends too early")
	}
	return refuse("", "is damaged or is not a tar archive (%v)", err)
}

func (u *unpacker) entry(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar, tar.TypeBlock, tar.TypeGNUSparse, tar.TypeCont, tar.TypeRegA: //nolint:staticcheck // TypeRegA is in old archives
	default:
		return refuse(h.Name, "has the unknown type %s", strconv.QuoteRune(rune(h.Typeflag)))
	}
	parts, err := split(h.Name)
	if err != nil {
		return err
	}
	if err := u.allowed(parts, h.Name); err != nil {
		return err
	}
	if len(parts) == 0 {
		if h.Typeflag != tar.TypeDir {
			return refuse(h.Name, "would replace the target itself")
		}
		return nil
	}
	if u.o.Hold != nil {
		if left, err := u.o.Hold(h, strings.Join(parts, "/"), u.tar); left || err != nil {
			return u.heldBack(err)
		}
	}
	if err := u.make(h, parts); err != nil {
		return failed("make", h.Name, err)
	}
	return nil
}

// heldBack returns the error of UnpackOptions.Hold, which may be one of the archive.
func (u *unpacker) heldBack(err error) error {
	if err != nil {
		return u.damaged(err)
	}
	return nil
}

// allowed checks a name against UnpackOptions.Only.
func (u *unpacker) allowed(parts []string, name string) error {
	if u.o.Only == "" || len(parts) > 0 && parts[0] == u.o.Only {
		return nil
	}
	return refuse(name, "is not the requested %s and is not below it", show(u.o.Only))
}

func (u *unpacker) make(h *tar.Header, parts []string) error {
	dir, base := parts[:len(parts)-1], parts[len(parts)-1]
	switch h.Typeflag {
	case tar.TypeDir:
		err := u.do(func() error { return u.directory(h, dir, base) })
		return u.count(1, 0, err)
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 {
			return refuse(h.Name, "is a symbolic link with an invalid target")
		}
		err := u.do(func() error { return u.symlink(h, dir, base) })
		return u.count(1, 0, err)
	case tar.TypeLink:
		err := u.do(func() error { return u.hardLink(h, parts) })
		return u.count(1, 0, err)
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		return u.special(h, dir, base)
	}
	return u.regular(h, dir, base)
}

func (u *unpacker) count(files, bytes int64, err error) error {
	if err == nil {
		u.done.Files += files
		u.done.Bytes += bytes
		u.o.Progress(files, bytes)
	}
	return err
}

// owner returns the owner to set on the entry's file; -1 means no change.
func (u *unpacker) owner(h *tar.Header) (uid, gid int) {
	if u.o.KeepOwner {
		return h.Uid, h.Gid
	}
	return -1, -1
}

func (u *unpacker) mode(h *tar.Header) uint32 {
	mode := uint32(h.Mode) & 0o7777
	if !u.o.KeepPrivileges {
		mode &^= unix.S_ISUID | unix.S_ISGID
	}
	return mode
}

func (u *unpacker) directory(h *tar.Header, dir []string, base string) error {
	at, err := u.dirs.enter(dir, h.Name)
	if err != nil {
		return err
	}
	err = unix.Mkdirat(at, base, 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := openDir(at, base)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return &Failure{Op: "make the directory", Name: h.Name, Err: unix.ENOTDIR}
		}
		return err
	}
	uid, gid := u.owner(h)
	setXattrs(fd, h.PAXRecords, u.o.KeepPrivileges)
	u.dirs.push(base, fd, &finish{mode: u.mode(h), uid: uid, gid: gid, times: timesOf(h.ModTime), made: made})
	return nil
}

// regular creates a file. The file is new, so nothing else has it open or under another
// name, and writing to it cannot change an existing file. An existing file with the
// same name is replaced when the new one is complete.
func (u *unpacker) regular(h *tar.Header, dir []string, base string) error {
	sparse := isSparse(h)
	if h.Size < 0 || sparse && h.Size > maxSparse {
		return refuse(h.Name, "claims a size of %d bytes", h.Size)
	}
	// Read the first bytes before Do, which must not wait for the sender.
	n, err := io.ReadFull(u.tar, u.buf[:min(h.Size, small)])
	if err != nil && !errors.Is(err, io.EOF) {
		return u.damaged(err)
	}
	f := &file{base: base, fd: -1, sparse: sparse}
	whole := int64(n) == h.Size
	err = u.do(func() error {
		at, err := u.dirs.enter(dir, h.Name)
		if err != nil {
			return err
		}
		f.at = at
		if err := f.create(); err != nil {
			return err
		}
		if err := f.write(u.buf[:n]); err != nil || !whole {
			return err
		}
		return u.finish(h, f)
	})
	if err == nil && !whole {
		u.o.Progress(0, int64(n))
		u.done.Bytes += int64(n)
		n = 0
		err = u.large(h, f)
	}
	if err != nil {
		_ = u.o.Do.run(f.discard)
		return err
	}
	return u.count(1, int64(n), u.o.Do.run(f.close))
}

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// large writes the rest of a file that is larger than the first piece.
func (u *unpacker) large(h *tar.Header, f *file) error {
	for f.size < h.Size {
		piece := u.buf[:min(h.Size-f.size, chunk)]
		if _, err := io.ReadFull(u.tar, piece); err != nil {
			return u.damaged(io.ErrUnexpectedEOF)
		}
		if err := u.do(func() error { return f.write(piece) }); err != nil {
			return err
		}
		u.o.Progress(0, int64(len(piece)))
		u.done.Bytes += int64(len(piece))
	}
	return u.o.Do.run(func() error { return u.finish(h, f) })
}

// finish sets the metadata of a written file and gives it its final name. The owner is
// set first, because changing it clears mode bits and capabilities.
func (u *unpacker) finish(h *tar.Header, f *file) error {
	if f.holes {
		if err := unix.Ftruncate(f.fd, f.size); err != nil {
			return err
		}
	}
	if uid, gid := u.owner(h); uid >= 0 {
		if err := unix.Fchown(f.fd, uid, gid); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(f.fd, u.mode(h)); err != nil {
		return err
	}
	setXattrs(f.fd, h.PAXRecords, u.o.KeepPrivileges)
	t := timesOf(h.ModTime)
	if err := unix.UtimesNanoAt(f.at, f.name(), t[:], unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if err := u.o.Wanted(); err != nil {
		return err
	}
	return f.publish()
}

// removeName removes the file with a name. It fails if that is a directory.
func removeName(at int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	return unix.Unlinkat(at, base, 0)
}

// replace calls create after removing an existing file with the name.
func replace(at int, base string, create func() error) error {
	err := create()
	// The retries are bounded, because another process may create the name repeatedly.
	for range 8 {
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := removeName(at, base); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		err = create()
	}
	return err
}

func (u *unpacker) symlink(h *tar.Header, dir []string, base string) error {
	at, err := u.dirs.enter(dir, h.Name)
	if err != nil {
		return err
	}
	if err := replace(at, base, func() error { return unix.Symlinkat(h.Linkname, at, base) }); err != nil {
		return err
	}
	return u.setMetadata(h, at, base)
}

// setMetadata sets owner and times of a file that must not be opened.
func (u *unpacker) setMetadata(h *tar.Header, at int, base string) error {
	if uid, gid := u.owner(h); uid >= 0 {
		if err := unix.Fchownat(at, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	t := timesOf(h.ModTime)
	return unix.UtimesNanoAt(at, base, t[:], unix.AT_SYMLINK_NOFOLLOW)
}

// hardLink creates a second name for a file in the target. It follows no symbolic link,
// not even if the file itself is one.
func (u *unpacker) hardLink(h *tar.Header, parts []string) error {
	target, err := split(h.Linkname)
	if err != nil {
		return refuse(h.Name, "is a hard link to %s, outside the target", show(h.Linkname))
	}
	if len(target) == 0 || u.allowed(target, h.Linkname) != nil {
		return refuse(h.Name, "is a hard link to %s, outside the target", show(h.Linkname))
	}
	if strings.Join(target, "/") == strings.Join(parts, "/") {
		return nil // clearing the name would lose the file
	}
	from, err := u.dirs.find(target, h.Name)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(from) }()
	at, err := u.dirs.enter(parts[:len(parts)-1], h.Name)
	if err != nil {
		return err
	}
	old, base := target[len(target)-1], parts[len(parts)-1]
	return replace(at, base, func() error { return unix.Linkat(from, old, at, base, 0) })
}

func (u *unpacker) special(h *tar.Header, dir []string, base string) error {
	kind, word := uint32(unix.S_IFIFO), "a FIFO"
	switch h.Typeflag {
	case tar.TypeChar:
		kind, word = unix.S_IFCHR, "a device"
	case tar.TypeBlock:
		kind, word = unix.S_IFBLK, "a device"
	}
	switch {
	case u.o.Special == RefuseSpecial:
		return refuse(h.Name, "is %s", word)
	case u.o.Special == SkipSpecial, u.o.NoDevices && kind != unix.S_IFIFO:
		u.done.Skipped++
		return nil
	}
	dev := 0
	if kind != unix.S_IFIFO {
		dev = int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	}
	err := u.do(func() error {
		at, err := u.dirs.enter(dir, h.Name)
		if err != nil {
			return err
		}
		if err := replace(at, base, func() error { return unix.Mknodat(at, base, kind|0o600, dev) }); err != nil {
			return err
		}
		if err := u.setMetadata(h, at, base); err != nil {
			return err
		}
		return chmodNoFollow(at, base, u.mode(h))
	})
	return u.count(1, 0, err)
}

// chmodNoFollow changes the mode of a file that must not be opened.
func chmodNoFollow(at int, base string, mode uint32) error {
	fd, err := openat(at, base, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode, 0)
}
