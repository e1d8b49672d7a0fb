package edits

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
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
	for _, st := range j.inOrder() {
		if !usable(string(st.Path)) || strings.Contains(st.Staged+st.Beside, "/") {
			continue
		}
		ok := !slices.Contains(left, string(st.To))
		if ok {
			if ok, err = done(st); err != nil {
				return left, err
			}
		}
		if !ok {
			left = append(left, string(st.Path))
		}
	}
	s.hook("sync the folder")
	return left, unix.Syncfs(s.in.fd)
}

// inOrder returns the steps in an order in which no file is in the way: first those that
// remove, then those that bring, then those that remove what was renamed, except what would be
// in the way.
func (j *journal) inOrder() []step {
	brought, folders := make(map[string]bool), make(map[string]bool)
	for _, st := range j.Steps {
		if st.New == nil {
			continue
		}
		brought[string(st.Path)] = true
		for _, dir := range above(string(st.Path)) {
			folders[dir] = true
		}
	}
	turn := func(st step) int {
		name := string(st.Path)
		switch {
		case st.New != nil:
			return 1
		case !brought[string(st.To)] || folders[name] || slices.ContainsFunc(above(name), func(dir string) bool { return brought[dir] }):
			return 0
		}
		return 2
	}
	all := slices.Clone(j.Steps)
	slices.SortStableFunc(all, func(a, b step) int { return turn(a) - turn(b) })
	return all
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
	if s.again && st.Beside != "" {
		// Folders of the copy that a killed call left may be gone.
		_ = s.in.within(name, false, func(dir int, _ string) error { return unix.Unlinkat(dir, st.Beside, 0) })
	}
	now, err := s.in.state(name)
	if staged == nil {
		return true, nil // moved before; it may have been changed since
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
		err := s.rename(st, s.fd, st.Staged, dir, base)
		if !errors.Is(err, unix.EXDEV) {
			return err
		}
		if err = s.copyBeside(st, dir); err == nil {
			err = s.rename(st, dir, st.Beside, dir, base)
		}
		if err != nil {
			_ = unix.Unlinkat(dir, st.Beside, 0) // that it failed is said
		}
		return err
	})
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	return err == nil, err
}

// rename moves a file to the place of a step.
func (s *stage) rename(st step, from int, name string, dir int, base string) error {
	s.hook("rename to " + string(st.Path))
	if st.Old == nil {
		err := unix.Renameat2(from, name, dir, base, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return unix.Renameat(from, name, dir, base)
}

// copyBeside copies a staged file to a folder on another file system. The file stays in the
// stage until all is synced.
func (s *stage) copyBeside(st step, dir int) error {
	s.hook("copy beside " + string(st.Path))
	if st.New.Link {
		to, err := readlinkat(s.fd, st.Staged)
		if err != nil {
			return err
		}
		return unix.Symlinkat(to, dir, st.Beside)
	}
	from, err := openRegular(s.fd, st.Staged)
	if err != nil {
		return err
	}
	defer from.Close() // only read
	var like unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &like); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, st.Beside, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	to := os.NewFile(uintptr(fd), st.Beside)
	s.hook("fill the copy beside " + string(st.Path))
	_, err = io.Copy(to, from)
	if err == nil && os.Geteuid() == 0 {
		err = unix.Fchown(fd, int(like.Uid), int(like.Gid))
	} else if err == nil {
		_ = unix.Fchown(fd, -1, int(like.Gid)) // allowed for groups of this user
	}
	if err == nil {
		err = errors.Join(unix.Fchmod(fd, like.Mode&0o777), to.Sync())
	}
	return errors.Join(err, to.Close())
}

// clear removes a folder that has nothing but empty folders.
func (f *folder) clear(name string) error {
	fd, err := f.at(name)
	if err != nil {
		return err
	}
	names, err := func() ([]string, error) {
		d := os.NewFile(uintptr(fd), name)
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
