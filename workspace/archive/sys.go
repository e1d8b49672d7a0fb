package archive

import (
	"bytes"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// xattrPrefix is the prefix of PAX records with extended attributes, as tar programs
// write them.
const xattrPrefix = "SCHILY.xattr."

// keptXattr reports whether an extended attribute is kept: user attributes and the
// capabilities of programs are. Others are specific to the machine.
func keptXattr(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability"
}

const (
	maxXattrs     = 64
	maxXattrBytes = 64 << 10
)

// xattrs returns the kept attributes of an open file as PAX records; nil if the file
// system does not support them.
func xattrs(fd int) map[string]string {
	var list [4096]byte
	n, err := unix.Flistxattr(fd, list[:])
	if err != nil || n == 0 {
		return nil
	}
	var out map[string]string
	for name := range bytes.SplitSeq(list[:n], []byte{0}) {
		key := string(name)
		// A PAX record cannot represent these keys.
		if !keptXattr(key) || strings.ContainsAny(key, "=\x00") || len(out) == maxXattrs {
			continue
		}
		value := make([]byte, maxXattrBytes)
		size, err := unix.Fgetxattr(fd, key, value)
		if err != nil {
			continue
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[xattrPrefix+key] = string(value[:size])
	}
	return out
}

// setXattrs sets the attributes of an entry on an open file. Unless trusted is set, it
// sets user attributes only. It ignores errors, because file systems may not support
// attributes and users may lack the right to set them.
func setXattrs(fd int, records map[string]string, trusted bool) {
	for key, value := range records {
		name, ok := strings.CutPrefix(key, xattrPrefix)
		if !ok || !keptXattr(name) || !trusted && !strings.HasPrefix(name, "user.") {
			continue
		}
		_ = unix.Fsetxattr(fd, name, []byte(value), 0)
	}
}

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func readlinkat(dir int, name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// readFull reads until p is full or the file ends.
func readFull(fd int, p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := unix.Read(fd, p[n:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return n, err
		case m == 0:
			return n, nil
		}
		n += max(m, 0)
	}
	return n, nil
}

func writeFull(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}

func isZero(p []byte) bool {
	for len(p) >= 8 {
		if p[0]|p[1]|p[2]|p[3]|p[4]|p[5]|p[6]|p[7] != 0 {
			return false
		}
		p = p[8:]
	}
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
