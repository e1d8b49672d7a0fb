package files

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// open opens a path of the container. It does not block on a FIFO and does not
// acquire a controlling terminal. It does not follow the magic links of /proc, which
// lead for example to the descriptors of the supervisor.
func open(p string, flags int) (int, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for range 16 {
		fd, err := unix.Openat2(unix.AT_FDCWD, p, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.ENOSYS): // before Linux 5.6
			return unix.Open(p, flags|unix.O_CLOEXEC, 0)
		}
		return fd, err
	}
	return -1, unix.EAGAIN
}

func closeFD(fd int) { _ = unix.Close(fd) }

// parent opens the directory of a path and returns the last component, unresolved.
func parent(p string) (dir int, base string, err error) {
	p = strings.TrimRight(p, "/")
	base = path.Base(p)
	if p == "" || base == "." || base == ".." {
		return -1, "", invalid("does not end in a name")
	}
	dir, err = open(p[:len(p)-len(base)], unix.O_PATH|unix.O_DIRECTORY)
	return dir, base, err
}

func viaProc(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// readlink returns the path of an open file.
func readlink(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(viaProc(fd), buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func describe(fd int, name string) (*guestv1.FileStat, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	out := stat(&st, name)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		out.LinkTarget = linkAt(fd, "")
	}
	return out, nil
}

func describeAt(dir int, name string) (*guestv1.FileStat, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	out := stat(&st, name)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		out.LinkTarget = linkAt(dir, name)
	}
	return out, nil
}

// linkAt returns the target of a symbolic link. If name is empty, dir is the link
// itself.
func linkAt(dir int, name string) []byte {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return nil
	}
	return buf[:n:n]
}

func stat(st *unix.Stat_t, name string) *guestv1.FileStat {
	seconds, nanos := st.Mtim.Unix()
	return &guestv1.FileStat{
		Name: []byte(name), Mode: st.Mode, Size: uint64(max(st.Size, 0)), Uid: st.Uid, Gid: st.Gid,
		ModifiedSeconds: seconds, ModifiedNanoseconds: uint32(nanos), Inode: st.Ino, Links: uint32(st.Nlink),
	}
}

// dirent decodes the first entry in a buffer of getdents64(2). It returns the entry's
// name, the offset of the next entry, and the rest of the buffer.
func dirent(buf []byte) (name string, next uint64, rest []byte) {
	const head = 19 // inode, offset, length, type
	if len(buf) < head {
		return "", 0, nil
	}
	next = binary.NativeEndian.Uint64(buf[8:])
	length := int(binary.NativeEndian.Uint16(buf[16:]))
	if length < head || length > len(buf) {
		return "", 0, nil
	}
	text := string(buf[head:length])
	if end := strings.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	return text, next, buf[length:]
}
