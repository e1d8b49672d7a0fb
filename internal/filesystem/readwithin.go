// This file reads the files that a folder brings. A stranger, or an agent in an
// earlier sandbox, may have written the folder, so a file may be a FIFO, a device, a link
// out of the folder, or larger than the memory. Only regular files inside the folder are
// read, in bounds and without waiting.

package filesystem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors that say why a file is not read. They are clauses for people.
var (
	ErrOutside   = errors.New("it lies outside of its folder")
	ErrLink      = errors.New("it is, or lies behind, a symbolic link that leads out of its folder")
	ErrIrregular = errors.New("it is not a regular file")
	ErrTooLarge  = errors.New("it is too large")
)

// ReadWithin reads a file below a folder. Symbolic links are followed inside the folder, and
// nowhere else.
func ReadWithin(dir, name string, most int64) ([]byte, error) {
	if !filepath.IsLocal(name) {
		return nil, ErrOutside
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root) // only used to open the file
	file, err := openWithin(root, name, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	return readAll(file, most)
}

// ReadNamed reads a file that the caller names. Links may lead to files below the current
// folder; those of a file elsewhere, to files below its own folder. What the caller names
// below /dev, such as the output of a command, need not be a regular file.
func ReadNamed(path string, most int64) ([]byte, error) {
	if strings.HasPrefix(path, "/dev/") {
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return nil, err
		}
		defer file.Close() // only read
		return limited(file, most)
	}
	dir, name := filepath.Split(filepath.Clean(path))
	if here, err := os.Getwd(); err == nil {
		full := path
		if !filepath.IsAbs(path) {
			full = filepath.Join(here, path)
		}
		if below, err := filepath.Rel(here, full); err == nil && filepath.IsLocal(below) {
			dir, name = here, below
		}
	}
	if dir == "" {
		dir = "."
	}
	return ReadWithin(dir, name, most)
}

// OpenWithinAt opens a regular file below an open folder. It follows no symbolic links.
func OpenWithinAt(dir int, name string) (*os.File, error) {
	return openWithin(dir, name, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
}

// ReadWithinAt reads a file that OpenAt opens.
func ReadWithinAt(dir int, name string, most int64) ([]byte, error) {
	file, err := OpenWithinAt(dir, name)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	return readAll(file, most)
}

func openWithin(dir int, name string, resolve uint64) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		// Opening a FIFO must not wait for a writer.
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: resolve,
	})
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, ErrLink
	case errors.Is(err, unix.ENXIO): // a socket, or a device without a driver
		return nil, ErrIrregular
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = ErrIrregular
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// readAll reads an open regular file. One that is too large is not read at all.
func readAll(file *os.File, most int64) ([]byte, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > most {
		return nil, tooLarge(most)
	}
	return limited(file, most)
}

func limited(file io.Reader, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(content)) > most {
		err = tooLarge(most)
	}
	if err != nil {
		return nil, err
	}
	return content, nil
}

func tooLarge(most int64) error { return fmt.Errorf("%w: more than %d KiB", ErrTooLarge, most>>10) }
