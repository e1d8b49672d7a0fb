package edits

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The order in which work is brought to a folder, so that a kill at any time leaves nothing
// half done:
//
//  1. The folder is locked, by a file in agbox's data folder, so one call at a time changes it.
//  2. A stage of an earlier call that was killed is finished (6 to 9) if it has a journal,
//     and else removed: then nothing was changed yet.
//  3. All decisions are made and all merges done.
//  4. The stage, a folder in agbox's data folder, gets the new version of each file, complete
//     with its mode, and the sandbox's version of each file a second time, for the base: the
//     user may change the folder's file before that has it. All is synced.
//  5. The journal, which lists all steps, is synced and appears in the stage by a rename.
//     From here on the work will be brought completely.
//  6. Each step removes a file or renames a staged file to its place. If that is on another
//     file system, the file is copied beside its place first, under a random name of the
//     journal, and renamed there. A step is repeated without harm: what is no longer in the
//     stage, or is in its place, is done. If another file with another content is in its place
//     by now, the user has taken it back, as git does, and the change counts as new again. A file
//     that somebody changed since the decision is left alone. A file that is renamed is removed
//     last: the user's lines in it are always somewhere in the folder.
//  7. All is synced.
//  8. Conflicts that got markers are remembered, each in a file beside the stage, and end when
//     a later call finds them resolved (settle). The base of the sandbox advances for all
//     others, in one commit of the daemon. If it does not (a kill before it, a removed
//     sandbox), the sandbox's changes count as new again, and bringing them once more finds
//     the folder to have them already.
//  9. The journal is removed, then the stage.
//
// A sandbox may be able to write the folder (a mounted workspace), so nothing in it is ever
// read as an instruction: the stage is found by the device, the inode and the birth of the
// opened folder, not by a name in it.
const (
	stageName   = "stage"
	lockName    = "lock"
	journalName = "journal"
	// besideName begins the names of copies beside their place.
	besideName = ".agbox-apply-"
	// oldStageName is where an agbox of before had its stage: in the folder itself. It is a
	// folder like any other.
	oldStageName = ".agbox-apply"
)

// journal lists what is to be done.
type journal struct {
	// Sandbox is the id of the sandbox whose base advances.
	Sandbox string
	// Label is its name in markers.
	Label   string
	Steps   []step
	Advance []Advanced
	// Pending are the files that get markers. Their base does not advance.
	Pending []pending
}

// step changes one file.
type step struct {
	Kind Kind
	Path []byte
	// Old is what was there at the decision, New what comes. Nil is no file.
	Old, New *File
	// Staged is the name of New in the stage, Identity is the file of that name, and Beside is the name of a
	// copy beside its place.
	Staged, Identity, Beside string
	// Target is that of New, if it is a symbolic link.
	Target []byte
	// To is where a removed file goes: it stays until that is there.
	To []byte
}

// Advanced is a file of the sandbox that was brought, for its base.
type Advanced struct {
	Path []byte
	// File is nil if the sandbox has removed it.
	File *File
	// Staged is the name of its content in the stage.
	Staged string
}

// stage is the folder with the new files.
type stage struct {
	in  *folder
	dir string
	fd  int
	// hook is called before each change of the file system. Tests stop there.
	hook func(what string)
	n    int
	// again is set if a killed call has made the stage. undone are the files that it brought, and that
	// somebody has taken back since.
	again  bool
	undone map[string]bool
}

// openStage opens the stage of a folder, if there is one.
func (f *folder) openStage(o ApplyOptions) (*stage, error) {
	dir, err := f.keep(o.Data)
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, stageName)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return &stage{in: f, dir: dir, fd: fd, hook: o.hook, again: true, undone: make(map[string]bool)}, nil
}

// makeStage makes the stage of a folder.
func (f *folder) makeStage(o ApplyOptions) (*stage, error) {
	dir, err := f.keep(o.Data)
	if err != nil {
		return nil, err
	}
	o.hook("make the stage")
	if err := os.Mkdir(filepath.Join(dir, stageName), 0o700); err != nil {
		return nil, err
	}
	s, err := f.openStage(o)
	if s != nil {
		s.again = false
	}
	return s, err
}

func (s *stage) close() { _ = unix.Close(s.fd) }

// remove removes the stage with what is in it. It has only files.
func (s *stage) remove() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		s.hook("remove " + e.Name() + " from the stage")
		if err := unix.Unlinkat(s.fd, e.Name(), 0); err != nil {
			return err
		}
	}
	s.hook("remove the stage")
	return os.Remove(s.dir)
}

// put writes a new file to the stage and returns its name there. like is the file whose
// owner and permissions it gets; it may be nil.
func (s *stage) put(f *File, content []byte, like *unix.Stat_t) (string, error) {
	s.n++
	name := strconv.Itoa(s.n)
	s.hook("stage " + name)
	if f.Link {
		return name, unix.Symlinkat(string(content), s.fd, name)
	}
	mode := uint32(0o666)
	if f.Executable {
		mode = 0o777
	}
	fd, err := unix.Openat(s.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, mode)
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err = file.Write(content); err == nil && like != nil {
		err = s.alike(fd, f, like)
	}
	return name, errors.Join(err, file.Close())
}

// alike gives a file the permissions of the one it replaces, except for the execution, and
// for root also its owner. It gets the group of its folder if that has setgid, as a file that
// is made there. It never has setuid or setgid.
func (s *stage) alike(fd int, f *File, like *unix.Stat_t) error {
	switch {
	case os.Geteuid() == 0:
		if err := unix.Fchown(fd, int(like.Uid), int(like.Gid)); err != nil {
			return err
		}
	case like.Mode&unix.S_IFMT == unix.S_IFREG || like.Mode&unix.S_ISGID != 0:
		_ = unix.Fchown(fd, -1, int(like.Gid)) // allowed for groups of this user
	}
	if like.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	mode := like.Mode & 0o777
	if f.Executable != (mode&0o100 != 0) {
		mode &^= 0o111
		if f.Executable {
			mode |= mode & 0o444 >> 2
		}
	}
	return unix.Fchmod(fd, mode)
}

// like describes the file that a path has now, or else the folder it comes into.
func (f *folder) like(name string) *unix.Stat_t {
	st := new(unix.Stat_t)
	err := f.within(name, false, func(dir int, base string) error {
		if err := unix.Fstatat(dir, base, st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.Fstat(dir, st)
		}
		return nil
	})
	if err != nil && unix.Fstat(f.fd, st) != nil {
		return nil
	}
	return st
}

// commit writes the journal. After it, the work will be brought.
func (s *stage) commit(j *journal) error {
	raw, err := json.Marshal(j)
	if err != nil {
		return err
	}
	s.hook("sync the stage")
	if err := unix.Syncfs(s.fd); err != nil {
		return err
	}
	s.hook("write the journal")
	fd, err := unix.Openat(s.fd, journalName+".new", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), journalName)
	if _, err = file.Write(raw); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	s.hook("rename the journal")
	if err := unix.Renameat(s.fd, journalName+".new", s.fd, journalName); err != nil {
		return err
	}
	return unix.Fsync(s.fd)
}

// load reads the journal; nil if there is none.
func (s *stage) load() (*journal, error) {
	file, err := openRegular(s.fd, journalName)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	j := new(journal)
	if err := json.NewDecoder(file).Decode(j); err != nil {
		return nil, fmt.Errorf("the journal in %s cannot be read (%w): look at the files there, then remove the folder", s.dir, err)
	}
	return j, nil
}

// perform does all steps of a journal that are not done yet. It returns the paths of files
// that somebody changed since the decision: they are left.
func (s *stage) perform(j *journal) (left []string, err error) {
	done := func(st step) (bool, error) {
		if st.New == nil {
			return s.removeFile(string(st.Path), st.Old)
		}
		return s.moveFile(st)
	}
	if s.again {
		if err := s.lookBack(j); err != nil {
			return nil, err
		}
	}
	for _, st := range j.inOrder() {
		if !st.valid() {
			continue
		}
		ok := !slices.Contains(left, string(st.To)) && !s.undone[string(st.To)]
		if ok {
			if ok, err = done(st); err != nil {
				return left, fmt.Errorf("%q: %w", st.Path, err)
			}
		}
		if !ok {
			left = append(left, string(st.Path))
		}
	}
	s.hook("sync the folder")
	return left, unix.Syncfs(s.in.fd)
}

// valid reports whether a step stays in the folder and the stage.
func (st step) valid() bool {
	return usable(string(st.Path)) && !strings.Contains(st.Staged+st.Beside, "/")
}

// lookBack notes the files that a killed call has moved to their places and that somebody has taken back.
func (s *stage) lookBack(j *journal) error {
	for _, st := range j.Steps {
		if !st.valid() || st.New == nil {
			continue
		}
		if staged, err := describe(s.fd, st.Staged); staged != nil || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		now, err := s.in.state(string(st.Path))
		s.undone[string(st.Path)] = (err != nil || !Same(now, st.New)) && !s.stands(st)
	}
	return nil
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
		return true, nil // moved before
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

// stands reports whether the file that a step has moved to its place is there, whatever it has by now.
func (s *stage) stands(st step) (is bool) {
	err := s.in.within(string(st.Path), false, func(dir int, base string) error {
		now, sure, err := fileID(dir, base)
		is = sure && now == st.Identity
		return err
	})
	return is && err == nil
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
