package edits

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy is the error if another process works on the folder.
var ErrBusy = errors.New("another agbox works on this folder")

// keep returns the folder, in agbox's data folder, with what agbox keeps about this folder:
// locks, and the stage of work in progress. Nothing in the folder itself is an instruction,
// because a sandbox may be able to write there. The time at which a folder was made tells it
// from one that got the number of a removed one.
func (f *folder) keep(data string) (string, error) {
	if data == "" {
		return "", errors.New("no folder for agbox's own files was given")
	}
	name, _, err := fileID(f.fd, "")
	if err != nil {
		return "", &os.PathError{Op: "statx", Path: f.path, Err: err}
	}
	return filepath.Join(data, name), nil
}

// fileID names the file or folder that has a name in a folder now, or that folder itself. sure is false if
// the file system does not say when it was made: then a later one may be called so too.
func fileID(dir int, name string) (id string, sure bool, err error) {
	var st unix.Statx_t
	err = unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st)
	return fmt.Sprintf("%d-%d-%d-%d.%09d", st.Dev_major, st.Dev_minor, st.Ino, st.Btime.Sec, st.Btime.Nsec), st.Mask&unix.STATX_BTIME != 0, err
}

// Hold keeps other processes from what has this name about a folder, until release is
// called. data is the folder with agbox's own files about folders. The error is ErrBusy, and
// names the process, if another one holds it.
func Hold(folder, data, name string) (release func(), err error) {
	f, err := openFolder(folder)
	if err != nil {
		return nil, err
	}
	defer f.close()
	return f.hold(data, name)
}

func (f *folder) hold(data, name string) (release func(), err error) {
	dir, err := f.keep(data)
	if err != nil {
		return nil, err
	}
	for {
		file, err := claim(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its last holder has just removed it
		}
		if err != nil {
			return nil, err
		}
		return func() {
			_ = os.Remove(file.Name()) // one that is left is used again
			_ = os.Remove(dir)         // the last one removes the folder
			_ = file.Close()           // gives the lock back
		}, nil
	}
}

// claim makes and locks a file. The error is fs.ErrNotExist if somebody removed it meanwhile.
func claim(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = busy(file)
	} else if err == nil {
		err = ours(file)
	}
	if err == nil {
		_, err = file.WriteAt([]byte(fmt.Sprintf("%d %s\n", os.Getpid(), strings.Join(os.Args, " "))), 0)
	}
	if err != nil {
		return nil, cmp.Or(err, file.Close())
	}
	return file, nil
}

// ours clears a file if it is still at its path.
func ours(file *os.File) error {
	held, err := file.Stat()
	if err != nil {
		return err
	}
	now, err := os.Lstat(file.Name())
	if err == nil && !os.SameFile(held, now) {
		err = fs.ErrNotExist
	}
	return cmp.Or(err, file.Truncate(0))
}

// busy returns the error that names the holder of a lock.
func busy(file *os.File) error {
	const most = 200
	text, _ := io.ReadAll(io.LimitReader(file, most)) // it is only for the message
	pid, command, named := strings.Cut(strings.TrimSpace(string(text)), " ")
	if !named {
		return fmt.Errorf("%w: try again when it has ended", ErrBusy)
	}
	return fmt.Errorf("%w: process %s, `%s`. Try again when it has ended", ErrBusy, pid, command)
}
