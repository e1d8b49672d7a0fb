package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/runtime/guest"
)

// othersMayWrite are the permission bits that let other users change a file.
const othersMayWrite = 0o022

// errOthers says that another user could replace a binary.
type errOthers struct{ why string }

func (e *errOthers) Error() string { return e.why }

// openBinary opens a binary to execute it later, and checks that only root and this user
// can change or replace it. The path may lead through symbolic links. A replacement after
// the check has no effect, because the caller executes the descriptor.
func openBinary(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	if err := checkBinary(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// openSuccessor opens another agboxd like openBinary, and applies the same check to the
// supervisor in its directory, which becomes root in every new sandbox. All other faults of
// the supervisor are left to the new binary's own check.
func openSuccessor(path string) (*os.File, error) {
	file, err := openBinary(path)
	if err != nil {
		return nil, err
	}
	// Where the links of the path lead to, as guest.FindBinary looks for it.
	target, err := os.Readlink(descriptorPath(file))
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	supervisor, err := openBinary(filepath.Join(filepath.Dir(target), guest.BinaryName))
	if err == nil {
		err = supervisor.Close()
	}
	if errors.As(err, new(*errOthers)) {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkBinary(file *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fs.ErrPermission
	}
	if err := checkWriters(file.Name(), st); err != nil {
		return err
	}
	// Where the links of the path lead to.
	target, err := os.Readlink(descriptorPath(file))
	if err != nil {
		return err
	}
	if err := checkFolders(file.Name()); err != nil {
		return err
	}
	return checkFolders(target)
}

// checkFolders checks all folders above a path. In one with the sticky bit, such as
// /tmp, users can replace only their own files.
func checkFolders(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: dir, Err: err}
		}
		if st.Mode&unix.S_ISVTX != 0 {
			st.Mode &^= othersMayWrite
		}
		if err := checkWriters(dir, st); err != nil || dir == filepath.Dir(dir) {
			return err
		}
	}
}

func checkWriters(path string, st unix.Stat_t) error {
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Getuid():
		return &errOthers{fmt.Sprintf("%s belongs to another user (uid %d)", path, st.Uid)}
	case st.Mode&othersMayWrite != 0:
		return &errOthers{fmt.Sprintf("other users may write to %s (mode %04o, `chmod go-w` mends that)", path, st.Mode&0o7777)}
	}
	return nil
}

// descriptorPath is a path of an open file in this process.
func descriptorPath(file *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(file.Fd()))
}
