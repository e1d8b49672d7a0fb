package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/process"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
	"github.com/agbox/agbox/workspace/archive"
)

// reading is a transfer that reads a part of one file.
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
		return nil, invalid("cannot be read from an offset of more than %d", int64(math.MaxInt64))
	}
	p := string(r.GetPath())
	var st *guestv1.FileStat
	err := r.actor.do(func() (err error) {
		if r.fd, err = open(p, unix.O_RDONLY); err != nil {
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

func (r *reading) run(_ context.Context, p *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error) {
	buf := make([]byte, min(r.left, rpc.MaxChunk))
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
			// End the stream of bytes; the final message says why.
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

// writing is a transfer that writes one file and replaces the old one at the end.
type writing struct {
	*guestv1.WriteTransfer
	service *Service
	actor   *actor
	// dir is the directory of the file, base its final name and temp the temporary
	// name of the file that is written.
	dir        int
	base, temp string
	fd         int
	// sum is of what was written, if the file to replace must be an expected one.
	sum hash.Hash
	// old describes the file to replace; nil if there is none.
	old *guestv1.FileStat
}

func (w *writing) begin() (*guestv1.FileStat, error) {
	return nil, w.actor.do(func() error {
		if err := w.find(); err != nil {
			return err
		}
		if len(w.GetExpectedSha256()) > 0 {
			w.sum = sha256.New()
		}
		temp := archive.TempName()
		var err error
		w.fd, err = unix.Openat(w.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			w.temp = temp
		}
		return err
	})
}

// find opens the directory of the file to write and describes the file to replace.
// It follows symbolic links, so that the target is replaced and not the link, as if a
// program opened the path.
func (w *writing) find() error {
	p := string(w.GetPath())
	flags := unix.O_PATH
	if len(w.GetExpectedSha256()) > 0 {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := open(p, flags)
	if errors.Is(err, unix.ENOENT) && flags != unix.O_PATH {
		return errChanged
	}
	for range maxLinks {
		// If the target of a link does not exist, the target is created.
		target := ""
		if errors.Is(err, unix.ENOENT) && !w.GetCreateOnly() {
			target = linkTarget(p)
		}
		if target == "" {
			break
		}
		p = target
		fd, err = open(p, unix.O_PATH)
	}
	switch {
	case err == nil:
		defer closeFD(fd)
		if p, err = w.checkReplaceable(fd, p); err != nil {
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

// maxLinks is the maximum length of a chain of symbolic links, as in the kernel.
const maxLinks = 40

// linkTarget returns the path that a symbolic link leads to; empty if p is not a
// symbolic link.
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
	// Do not clean the path: because of symbolic links, only the kernel can resolve "..".
	p = strings.TrimRight(p, "/")
	return p[:len(p)-len(base)] + target
}

// checkReplaceable checks that the file at fd may be replaced, stores its description, and
// returns its real path.
func (w *writing) checkReplaceable(fd int, p string) (string, error) {
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
		// A rename needs only write permission on the directory. Require it on the file
		// too, as if it were written in place.
		check, err := open(p, unix.O_WRONLY)
		if err != nil && !errors.Is(err, unix.ETXTBSY) {
			return "", err
		}
		closeFD(check)
	}
	w.old = st
	return readlink(fd)
}

func (w *writing) run(ctx context.Context, p *rpc.Pipe, moved *process.BulkMeter) (*guestv1.TransferEnd, error) {
	buf := make([]byte, rpc.MaxChunk)
	for {
		chunk, err := p.Next(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err // the daemon closed the connection; close removes the file
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
	if w.sum != nil {
		_, _ = w.sum.Write(data) // a hash never fails
	}
	for len(data) > 0 {
		n, err := unix.Write(w.fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		data = data[max(n, 0):]
	}
	return nil
}

// finish syncs the written file and renames it to its final name. After a crash of
// the host there is the old file or the new one, both complete.
func (w *writing) finish(end *guestv1.TransferEnd, wanted func() error) error {
	if err := w.setMetadata(); err != nil {
		return err
	}
	if err := fsync(w.fd); err != nil {
		return err
	}
	err := w.publish(wanted)
	if err != nil {
		return err
	}
	w.temp = ""
	end.File, err = describe(w.fd, w.base)
	closeFD(w.fd)
	w.fd = -1
	return err
}

// publish renames the file to its final name if the transfer is still wanted. It holds
// the lock of the directory meanwhile, so that no later write can finish between the
// check and the rename.
func (w *writing) publish(wanted func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(w.dir, &st); err != nil {
		return err
	}
	lock := &w.service.renameLocks[st.Ino%uint64(len(w.service.renameLocks))]
	lock.Lock()
	defer lock.Unlock()
	if err := wanted(); err != nil {
		return err
	}
	if w.sum == nil {
		return rename(w.dir, w.temp, w.dir, w.base, w.GetCreateOnly())
	}
	if err := w.expected(w.base); err != nil {
		return err
	}
	return w.replaceExpected()
}

// expected compares the file with a name with the one that is to be replaced.
func (w *writing) expected(name string) error {
	fd, err := unix.Openat(w.dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return errChanged
	}
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG { // to read from a FIFO could take for ever
		return errChanged
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), w.GetExpectedSha256()) {
		return errChanged
	}
	return nil
}

// fsync is a variable so that a test can act while a file is being synced.
var fsync = unix.Fsync

// setMetadata sets owner and mode of the file. A failure to keep the old owner is not an
// error, because only root can change owners.
func (w *writing) setMetadata() error {
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
