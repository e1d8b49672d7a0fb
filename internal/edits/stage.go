package edits

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// The order in which work is brought to a folder, so that a kill at any time leaves nothing
// half done:
//
//  1. The folder is locked (flock on the folder itself), so one call at a time changes it.
//  2. A stage of an earlier call that was killed is finished (6 to 9) if it has a journal,
//     and else removed: then nothing was changed yet.
//  3. All decisions are made and all merges done.
//  4. The stage, a folder beside the files, gets the new version of each file, complete with
//     its mode, and the sandbox's version of each merged file. All is synced.
//  5. The journal, which lists all steps, is synced and appears in the stage by a rename.
//     From here on the work will be brought completely.
//  6. Each step removes a file or renames a staged file to its place. A step is repeated
//     without harm: what is no longer in the stage is done. A file that somebody changed since
//     the decision is left alone.
//  7. All is synced.
//  8. The base of the sandbox advances, in one commit of the daemon. If it does not (a kill
//     before it, a removed sandbox), the sandbox's changes count as new again, and bringing
//     them once more finds the folder to have them already.
//  9. The journal is removed, then the stage.
//
// The stage is only in folders of the host: no path of a sandbox begins with its name
// (usable). A stage that is not the caller's own folder of mode 0700, as one that came with
// a clone, is not believed.
const (
	stageName   = ".agbox-apply"
	journalName = "journal"
)

// journal lists what is to be done.
type journal struct {
	// Sandbox is the id of the sandbox whose base advances.
	Sandbox string
	Steps   []step
	Advance []Advanced
}

// step changes one file.
type step struct {
	Kind Kind
	Path []byte
	// Old is what was there at the decision, New what comes. Nil is no file.
	Old, New *File
	// Staged is the name of New in the stage.
	Staged string
	// Target is that of New, if it is a symbolic link.
	Target []byte
}

// Advanced is a file of the sandbox that was brought, for its base.
type Advanced struct {
	Path []byte
	// File is nil if the sandbox has removed it.
	File *File
	// Staged is the name of its content in the stage. Empty: it is the file itself.
	Staged string
}

// errForeignStage is the error for a stage that agbox has not made.
var errForeignStage = errors.New("the folder has a " + stageName + " that agbox has not made: remove it")

// stage is the folder with the new files.
type stage struct {
	in *folder
	fd int
	// hook is called before each change of the file system. Tests stop there.
	hook func(what string)
	n    int
}

// openStage opens the stage of a folder, if there is one.
func (f *folder) openStage(hook func(string)) (*stage, error) {
	fd, err := f.at(stageName)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, errForeignStage
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o7777 != 0o700 || int(st.Uid) != os.Geteuid() {
		_ = unix.Close(fd)
		return nil, errForeignStage
	}
	return &stage{in: f, fd: fd, hook: hook}, nil
}

// makeStage makes the stage of a folder.
func (f *folder) makeStage(hook func(string)) (*stage, error) {
	hook("make the stage")
	if err := unix.Mkdirat(f.fd, stageName, 0o700); err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: path.Join(f.path, stageName), Err: err}
	}
	return f.openStage(hook)
}

func (s *stage) close() { _ = unix.Close(s.fd) }

// remove removes the stage with what is in it. It has only files.
func (s *stage) remove() error {
	d, err := s.in.at(stageName)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(d), stageName)
	defer dir.Close() // only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		s.hook("remove " + name + " from the stage")
		if err := unix.Unlinkat(s.fd, name, 0); err != nil {
			return err
		}
	}
	s.hook("remove the stage")
	return unix.Unlinkat(s.in.fd, stageName, unix.AT_REMOVEDIR)
}

// put writes a new file to the stage and returns its name there. likeFD is a file whose
// owner and permissions it gets, -1 if there is none.
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
// for root also its owner. It never has setuid or setgid.
func (s *stage) alike(fd int, f *File, like *unix.Stat_t) error {
	if os.Geteuid() == 0 {
		if err := unix.Fchown(fd, int(like.Uid), int(like.Gid)); err != nil {
			return err
		}
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
		return nil, fmt.Errorf("the journal in %s cannot be read (%w): look at the files there, then remove the folder", path.Join(s.in.path, stageName), err)
	}
	return j, nil
}
