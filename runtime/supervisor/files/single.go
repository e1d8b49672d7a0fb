package files

import (
	"context"
	"errors"
	"io"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/archive"
	"github.com/agbox/agbox/internal/bulk"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// reading is a transfer of a part of one file.
type reading struct {
	*guestv1.ReadTransfer
	actor *actor
	fd    int
	left  uint64
}

func (r *reading) begin() (*guestv1.FileStat, error) {
	r.left = r.GetLength()
	if r.left == 0 {
		r.left = math.MaxUint64
	}
	if r.GetOffset() > math.MaxInt64 {
		return nil, invalid("cannot be read from so far on")
	}
	p := string(r.GetPath())
	var st *guestv1.FileStat
	err := r.actor.do(func() (err error) {
		if r.fd, err = open(p, unix.O_RDONLY, 0); err != nil {
			return err
		}
		if st, err = describe(r.fd, path.Base(p)); err != nil {
			return err
		}
		if err := wantRegular(st.GetMode()); err != nil {
			return err
		}
		_, err = unix.Seek(r.fd, int64(r.GetOffset()), io.SeekStart)
		return err
	})
	return st, err
}

func wantRegular(mode uint32) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return errNotRegular
}

func (r *reading) run(_ context.Context, p *wire.Pipe, moved *bulk.Meter) (*guestv1.TransferEnd, error) {
	buf := make([]byte, min(r.left, wire.MaxChunk))
	for r.left > 0 {
		var n int
		err := r.actor.do(func() (err error) {
			n, err = unix.Read(r.fd, buf[:min(r.left, uint64(len(buf)))])
			return err
		})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			// The bytes end here; the last word says why.
			return nil, errors.Join(err, p.End())
		case n == 0:
			return new(guestv1.TransferEnd), p.End()
		}
		if _, err := p.Write(buf[:n]); err != nil {
			return nil, err
		}
		moved.Add(n)
		r.left -= uint64(n)
	}
	return new(guestv1.TransferEnd), p.End()
}

func (r *reading) close() {
	if r.fd >= 0 {
		closeFD(r.fd)
		r.fd = -1
	}
}

// writing is a transfer that replaces one file when it is complete.
type writing struct {
	*guestv1.WriteTransfer
	service *Service
	actor   *actor
	// dir is the directory of the file, base its name there, temp that of what is
	// written until then.
	dir        int
	base, temp string
	fd         int
	// old is the file that is replaced; nil if there is none.
	old *guestv1.FileStat
}

func (w *writing) begin() (*guestv1.FileStat, error) {
	return nil, w.actor.do(func() error {
		if err := w.find(); err != nil {
			return err
		}
		temp := archive.TempName()
		var err error
		w.fd, err = unix.Openat(w.dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			w.temp = temp
		}
		return err
	})
}

// find looks at what is replaced. A symbolic link is followed: what it leads to is
// replaced, as a program that opens the path would.
func (w *writing) find() error {
	p := string(w.GetPath())
	fd, err := open(p, unix.O_PATH, 0)
	for range maxLinks {
		// What a link leads to may be missing; it is what is made then.
		target := ""
		if errors.Is(err, unix.ENOENT) && !w.GetCreateOnly() {
			target = linkTarget(p)
		}
		if target == "" {
			break
		}
		p = target
		fd, err = open(p, unix.O_PATH, 0)
	}
	switch {
	case err == nil:
		defer closeFD(fd)
		if p, err = w.replaces(fd, p); err != nil {
			return err
		}
	case !errors.Is(err, unix.ENOENT):
		return err
	case w.GetParents():
		if err := makeAll(path.Dir(strings.TrimRight(p, "/")), 0o755); err != nil {
			return err
		}
	}
	if strings.HasSuffix(p, "/") {
		return unix.EISDIR
	}
	w.dir, w.base, err = parent(p)
	return err
}

// maxLinks is how many symbolic links that lead on to links are followed, as by the
// kernel.
const maxLinks = 40

// linkTarget is the path that a symbolic link leads to; empty if there is none.
func linkTarget(p string) string {
	dir, base, err := parent(p)
	if err != nil {
		return ""
	}
	defer closeFD(dir)
	target := string(linkAt(dir, base))
	if target == "" || strings.HasPrefix(target, "/") {
		return target
	}
	// Not cleaned: only the kernel knows what is above a directory.
	p = strings.TrimRight(p, "/")
	return p[:len(p)-len(base)] + target
}

// replaces takes the file that is there, and returns its path.
func (w *writing) replaces(fd int, p string) (string, error) {
	if w.GetCreateOnly() {
		return "", unix.EEXIST
	}
	st, err := describe(fd, path.Base(p))
	if err != nil {
		return "", err
	}
	if err := wantRegular(st.GetMode()); err != nil {
		return "", err
	}
	if w.actor.id != nil {
		// The directory alone decides about a rename; a file that is not to be
		// written by this user stays as it is all the same.
		check, err := open(p, unix.O_WRONLY, 0)
		if err != nil && !errors.Is(err, unix.ETXTBSY) {
			return "", err
		}
		closeFD(check)
	}
	w.old = st
	return readlink(fd)
}

func (w *writing) run(ctx context.Context, p *wire.Pipe, moved *bulk.Meter) (*guestv1.TransferEnd, error) {
	buf := make([]byte, wire.MaxChunk)
	for {
		chunk, err := p.Next(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err // the daemon went away: close removes the file
		}
		if err := w.actor.do(func() error { return w.append(chunk) }); err != nil {
			return nil, err
		}
		moved.Add(len(chunk))
	}
	end := new(guestv1.TransferEnd)
	return end, w.actor.do(func() error {
		return w.finish(end, func() error { return wanted(ctx, p) })
	})
}

func (w *writing) append(data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(w.fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// finish puts the written file in its place. It is on the disk before: a host
// that crashes leaves the old file or the new one.
func (w *writing) finish(end *guestv1.TransferEnd, wanted func() error) error {
	if err := w.adorn(); err != nil {
		return err
	}
	if err := fsync(w.fd); err != nil {
		return err
	}
	err := w.settle(wanted)
	if err != nil {
		return err
	}
	w.temp = ""
	end.File, err = describe(w.fd, w.base)
	closeFD(w.fd)
	w.fd = -1
	return err
}

// settle gives the file its name if it is still wanted. Others that end in the
// directory wait for that: no later write gets between the question and the rename.
func (w *writing) settle(wanted func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(w.dir, &st); err != nil {
		return err
	}
	turn := &w.service.settling[st.Ino%uint64(len(w.service.settling))]
	turn.Lock()
	defer turn.Unlock()
	if err := wanted(); err != nil {
		return err
	}
	return rename(w.dir, w.temp, w.dir, w.base, w.GetCreateOnly())
}

// fsync is replaced by a test that must do something while a file is synced.
var fsync = unix.Fsync

// adorn gives the file its owner and mode. An owner that is only kept is not
// worth an error; a user cannot give files away.
func (w *writing) adorn() error {
	mode, uid, gid := uint32(0o644), -1, -1
	if w.old != nil {
		mode = w.old.GetMode() & 0o7777
		_ = unix.Fchown(w.fd, int(w.old.GetUid()), int(w.old.GetGid()))
	}
	if w.Mode != nil {
		mode = w.GetMode() & 0o7777
	}
	if w.Uid != nil {
		uid = int(w.GetUid())
	}
	if w.Gid != nil {
		gid = int(w.GetGid())
	}
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchown(w.fd, uid, gid); err != nil {
			return err
		}
	}
	return unix.Fchmod(w.fd, mode)
}

func (w *writing) close() {
	_ = w.actor.do(func() error {
		if w.temp != "" {
			_ = unix.Unlinkat(w.dir, w.temp, 0)
		}
		for _, fd := range []int{w.fd, w.dir} {
			if fd >= 0 {
				closeFD(fd)
			}
		}
		w.temp, w.fd, w.dir = "", -1, -1
		return nil
	})
}
