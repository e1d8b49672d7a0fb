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

// renameat2 is a variable so that a test can act right before a file is replaced.
var renameat2 = unix.Renameat2

// replaceExpected puts the written file in the place of the expected one. Programs of the sandbox
// may write that at any moment, so it is exchanged and compared again where nobody finds it, and
// then removed. If it is another one, it gets its place back. If the supervisor is killed in
// between, a temporary file is left, as after any write.
func (w *writing) replaceExpected() error {
	err := w.exchange()
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // not on this file system
		return unix.Renameat(w.dir, w.temp, w.dir, w.base)
	case errors.Is(err, unix.ENOENT):
		return errChanged
	case err != nil:
		return err
	}
	if err := w.expected(w.temp); err != nil {
		return w.takeBack(err)
	}
	_ = unix.Unlinkat(w.dir, w.temp, 0) // the file is written, also if the old one cannot be removed
	return nil
}

// exchange exchanges the temporary file with the one in the final place. For who watches the directory,
// that one moves away first, so the last that he hears is that there is a file.
func (w *writing) exchange() error {
	return renameat2(w.dir, w.base, w.dir, w.temp, unix.RENAME_EXCHANGE)
}

// takeBack gives what replaceExpected has displaced its place back. If the written file was
// changed or replaced in that place too, it keeps both.
func (w *writing) takeBack(why error) error {
	err := w.exchange()
	if errors.Is(err, unix.ENOENT) { // the written file was removed
		if err = rename(w.dir, w.temp, w.dir, w.base, true); err == nil {
			w.temp = ""
			return why
		}
	}
	if err != nil || !w.untouched() {
		kept := &keptError{w.temp}
		w.temp = "" // close must not remove it
		return kept
	}
	return why
}

// untouched reports whether the temporary file is the one that was written, with nothing else in it.
func (w *writing) untouched() bool {
	var written, there unix.Stat_t
	if unix.Fstat(w.fd, &written) != nil || unix.Fstatat(w.dir, w.temp, &there, unix.AT_SYMLINK_NOFOLLOW) != nil ||
		written.Dev != there.Dev || written.Ino != there.Ino {
		return false
	}
	sum := sha256.New()
	_, err := io.Copy(sum, io.NewSectionReader(openFile(w.fd), 0, math.MaxInt64))
	return err == nil && bytes.Equal(sum.Sum(nil), w.sum.Sum(nil))
}

// openFile reads the file of a descriptor, whatever its permissions are now.
type openFile int

func (fd openFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := unix.Pread(int(fd), p, at)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}
