package edits

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// perform does all steps of a journal that are not done yet. It returns the paths of files
// that somebody changed since the decision: they are left.
func (s *stage) perform(j *journal) (left []string, err error) {
	done := func(st step) (bool, error) {
		if st.New == nil {
			return s.removeFile(string(st.Path), st.Old)
		}
		return s.moveFile(st)
	}
	// Removed files may make room for folders and files.
	for _, removing := range []bool{true, false} {
		for _, st := range j.Steps {
			if (st.New == nil) != removing || !usable(string(st.Path)) || strings.Contains(st.Staged, "/") {
				continue
			}
			ok, err := done(st)
			if err != nil {
				return left, err
			}
			if !ok {
				left = append(left, string(st.Path))
			}
		}
	}
	s.hook("sync the folder")
	return left, unix.Syncfs(s.in.fd)
}

// removeFile removes a file if it is still what it was, and then the folders that are empty.
func (s *stage) removeFile(name string, old *File) (ok bool, err error) {
	now, err := s.in.state(name)
	switch {
	case errors.As(err, new(*errBlocked)) || err == nil && now == nil:
		// A repetition may find a later step's file or folder here.
	case err != nil:
		return false, err
	case !Same(now, old):
		return false, nil
	default:
		s.hook("remove " + name)
		err := s.in.within(name, false, func(dir int, base string) error { return unix.Unlinkat(dir, base, 0) })
		if err != nil {
			return false, err
		}
	}
	for _, dir := range above(name) {
		s.hook("remove the folder " + dir)
		err := s.in.within(dir, false, func(parent int, base string) error { return unix.Unlinkat(parent, base, unix.AT_REMOVEDIR) })
		if err != nil {
			break // not empty, or gone
		}
	}
	return true, nil
}

// moveFile moves a staged file to its place if that is still what it was.
func (s *stage) moveFile(st step) (ok bool, err error) {
	staged, err := describe(s.fd, st.Staged)
	if err != nil {
		return false, err
	}
	name := string(st.Path)
	now, err := s.in.state(name)
	if staged == nil {
		return err == nil && Same(now, st.New), nil // moved before, unless it was changed since
	}
	if blocked := new(errBlocked); errors.As(err, &blocked) {
		// Removed files may have left empty folders in the place of the file.
		if s.in.clear(name) != nil {
			return false, nil
		}
		now, err = s.in.state(name)
		if errors.As(err, &blocked) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	if !Same(now, st.Old) {
		return Same(now, st.New), nil
	}
	s.hook("make the folders of " + name)
	err = s.in.within(name, true, func(dir int, base string) error {
		s.hook("rename to " + name)
		if st.Old == nil {
			err := unix.Renameat2(s.fd, st.Staged, dir, base, unix.RENAME_NOREPLACE)
			if !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
		return unix.Renameat(s.fd, st.Staged, dir, base)
	})
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// clear removes a folder that has nothing but empty folders.
func (f *folder) clear(name string) error {
	fd, err := f.at(name)
	if err != nil {
		return err
	}
	names, err := func() ([]string, error) {
		d := openedDir(fd, name)
		defer d.Close() // only read
		return d.Readdirnames(-1)
	}()
	if err != nil {
		return err
	}
	for _, below := range names {
		if err := f.clear(path.Join(name, below)); err != nil {
			return err
		}
	}
	return f.within(name, false, func(dir int, base string) error { return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) })
}
