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

// Special says what to do about devices and FIFOs.
type Special int

// What can be done about devices and FIFOs.
const (
	RefuseSpecial Special = iota
	SkipSpecial
	MakeSpecial
)

// UnpackOptions say how to unpack.
type UnpackOptions struct {
	// Only is the one name that may stand at the top; empty: any.
	Only string
	// KeepOwner gives files the owner that the archive names, by number. Without
	// it they belong to whoever makes them.
	KeepOwner bool
	// KeepPrivileges keeps setuid, setgid and the capabilities of programs.
	KeepPrivileges bool
	Special        Special
	// Do runs everything that touches files.
	Do Do
	// Wanted is asked before anything is made or replaced, within Do; its error ends
	// the unpacking. Nil: it is wanted until ctx ends.
	Wanted func() error
	// Progress is called as that of PackOptions.
	Progress func(files, bytes int64)
}

// Unpacked counts what came out of an archive.
type Unpacked struct {
	Files, Bytes, Skipped int64
}

// maxSparse is the largest sparse file that is accepted, in bytes: a few bytes of
// an archive can claim exabytes of holes, and each is read as a zero.
const maxSparse = 64 << 30

// Unpack reads a tar archive to its end and makes what is in it below the
// directory dir, which stays open and keeps its owner, mode and times. An entry
// replaces what stands under its name, but no directory gives way to something
// else, nor something else to a directory. What was made before an error stays.
//
// Errors of the archive are Refusals, those of a file are Failures, and those of
// r are passed on.
func Unpack(ctx context.Context, r io.Reader, dir int, o UnpackOptions) (Unpacked, error) {
	u := &unpacker{ctx: ctx, o: o, place: newPlace(dir), src: &source{r: r}, buf: make([]byte, chunk)}
	if o.Progress == nil {
		u.o.Progress = func(int64, int64) {}
	}
	if o.Wanted == nil {
		u.o.Wanted = ctx.Err
	}
	u.tar = tar.NewReader(u.src)
	err := u.all()
	// Also after an error: what was made before keeps its times.
	err = errors.Join(err, o.Do.run(u.place.close))
	return u.done, err
}

// source tells errors of the reader from those of the archive.
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
	ctx   context.Context
	o     UnpackOptions
	place *place
	src   *source
	tar   *tar.Reader
	buf   []byte
	done  Unpacked
}

func (u *unpacker) all() error {
	for {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := u.tar.Next()
		switch {
		case errors.Is(err, io.EOF):
			return u.rest()
		case err != nil:
			return u.damaged(err)
		}
		if err := u.entry(h); err != nil {
			return err
		}
	}
}

// do makes something, if that is still wanted.
func (u *unpacker) do(fn func() error) error {
	return u.o.Do.run(func() error {
		if err := u.o.Wanted(); err != nil {
			return err
		}
		return fn()
	})
}

// rest reads what follows the end of the archive: its sender may still be
// writing the padding, and would take our leaving for a failure.
func (u *unpacker) rest() error {
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
	return refuse("", "is damaged, or is no tar archive (%v)", err)
}

func (u *unpacker) entry(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar, tar.TypeBlock, tar.TypeGNUSparse, tar.TypeCont, tar.TypeRegA: //nolint:staticcheck // TypeRegA is in old archives
	default:
		return refuse(h.Name, "is of the unknown type %s", strconv.QuoteRune(rune(h.Typeflag)))
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
	if err := u.make(h, parts); err != nil {
		return failed("make", h.Name, err)
	}
	return nil
}

// allowed holds a name against Only.
func (u *unpacker) allowed(parts []string, name string) error {
	if u.o.Only == "" || len(parts) > 0 && parts[0] == u.o.Only {
		return nil
	}
	return refuse(name, "is not the %s that was asked for, nor in it", show(u.o.Only))
}

func (u *unpacker) make(h *tar.Header, parts []string) error {
	dir, base := parts[:len(parts)-1], parts[len(parts)-1]
	switch h.Typeflag {
	case tar.TypeDir:
		err := u.do(func() error { return u.directory(h, dir, base) })
		return u.count(1, 0, err)
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 {
			return refuse(h.Name, "is a symbolic link to nothing")
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

// owner is whom the entry's file is given to; -1 leaves it as it is.
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
	at, err := u.place.enter(dir, h.Name)
	if err != nil {
		return err
	}
	err = unix.Mkdirat(at, base, 0o700)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := down(at, base)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return &Failure{Op: "make the directory", Name: h.Name, Err: unix.ENOTDIR}
		}
		return err
	}
	uid, gid := u.owner(h)
	setXattrs(fd, h.PAXRecords, u.o.KeepPrivileges)
	u.place.push(base, fd, &finish{mode: u.mode(h), uid: uid, gid: gid, times: timesOf(h.ModTime), made: made})
	return nil
}

// clear removes what stands under a name, unless it is a directory.
func clearName(at int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	return unix.Unlinkat(at, base, 0)
}

// fresh makes something under a name that is not taken then.
func fresh(at int, base string, create func() error) error {
	err := create()
	// A bound, because somebody may be making the name again and again.
	for range 8 {
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := clearName(at, base); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		err = create()
	}
	return err
}

func (u *unpacker) symlink(h *tar.Header, dir []string, base string) error {
	at, err := u.place.enter(dir, h.Name)
	if err != nil {
		return err
	}
	if err := fresh(at, base, func() error { return unix.Symlinkat(h.Linkname, at, base) }); err != nil {
		return err
	}
	return u.adorn(h, at, base)
}

// adorn gives owner and times to what cannot be opened.
func (u *unpacker) adorn(h *tar.Header, at int, base string) error {
	if uid, gid := u.owner(h); uid >= 0 {
		if err := unix.Fchownat(at, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	t := timesOf(h.ModTime)
	return unix.UtimesNanoAt(at, base, t[:], unix.AT_SYMLINK_NOFOLLOW)
}

// hardLink gives a second name to a file in the target. It does not follow
// symbolic links, not even that of the file itself.
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
	from, err := u.place.find(target, h.Name)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(from) }()
	at, err := u.place.enter(parts[:len(parts)-1], h.Name)
	if err != nil {
		return err
	}
	old, base := target[len(target)-1], parts[len(parts)-1]
	return fresh(at, base, func() error { return unix.Linkat(from, old, at, base, 0) })
}

func (u *unpacker) special(h *tar.Header, dir []string, base string) error {
	kind, word := uint32(unix.S_IFIFO), "a FIFO"
	switch h.Typeflag {
	case tar.TypeChar:
		kind, word = unix.S_IFCHR, "a device"
	case tar.TypeBlock:
		kind, word = unix.S_IFBLK, "a device"
	}
	switch u.o.Special {
	case RefuseSpecial:
		return refuse(h.Name, "is %s", word)
	case SkipSpecial:
		u.done.Skipped++
		return nil
	}
	dev := 0
	if kind != unix.S_IFIFO {
		dev = int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)))
	}
	err := u.do(func() error {
		at, err := u.place.enter(dir, h.Name)
		if err != nil {
			return err
		}
		if err := fresh(at, base, func() error { return unix.Mknodat(at, base, kind|0o600, dev) }); err != nil {
			return err
		}
		if err := u.adorn(h, at, base); err != nil {
			return err
		}
		return chmodNoFollow(at, base, u.mode(h))
	})
	return u.count(1, 0, err)
}

// chmodNoFollow changes the mode of what must not be opened.
func chmodNoFollow(at int, base string, mode uint32) error {
	fd, err := openat(at, base, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode, 0)
}
