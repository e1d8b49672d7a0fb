package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math"

	"golang.org/x/sys/unix"
)

// keptError is the error for a file that was changed so often that one of its versions is left
// under a temporary name, because nothing else has it.
type keptError struct{ name string }

func (e *keptError) Error() string { return "a version is kept as " + e.name }

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
