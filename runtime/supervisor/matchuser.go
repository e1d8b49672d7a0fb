package supervisor

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// matchWithin bounds the time that the home takes at one start; the next one goes on. It is
	// less than the daemon waits for a new supervisor.
	matchWithin = 15 * time.Second
	// matchDepth bounds the depth of folders in the home, and so the open descriptors.
	matchDepth = 64
	// maxUnfinished bounds the note of an unfinished home, in bytes.
	maxUnfinished = 64
	// unmapped is the id that the kernel shows for one that has none in a user namespace.
	unmapped = 65534
)

// ErrHomeUnfinished means that the user has its new ids, and a part of its home not yet.
var ErrHomeUnfinished = errors.New("not all of the user's home belongs to its new ids yet: the next start goes on with it")

// ErrHomeLeft means that a start has looked at the home for all its time and found nothing to give.
// None goes on with it: each looks from the beginning.
var ErrHomeLeft = errors.New("the home is too large to give all of it to the user's new ids: the rest keeps its owners")

// userIDs are the ids of a user.
type userIDs struct{ uid, gid int }

// MatchUser gives the user of the main command the ids of the owner of BootConfig's
// match_user: in the user files, and for what the user owns in its home. It must run before
// any process does. Root, a number, and a folder of root are left alone.
//
// The entry in passwd is changed last. So a supervisor that is killed before does it again. If
// the time does not suffice for the home, the error is ErrHomeUnfinished, and a note beside
// passwd names the old ids for the next start. ErrHomeLeft ends that.
func MatchUser(cfg Config) error { return matchUser(cfg, time.Now().Add(matchWithin)) }

func matchUser(cfg Config, until time.Time) error {
	name, _, _ := strings.Cut(cfg.Boot.GetUser(), ":")
	if _, err := strconv.Atoi(name); cfg.Boot.GetMatchUser() == "" || name == "" || err == nil {
		return nil
	}
	owner, err := ownerOf(cfg.Boot.GetMatchUser())
	if err != nil {
		return err
	}
	passwd, err := readUserFile(cfg.Passwd)
	if err != nil {
		return err
	}
	group, err := readUserFile(cfg.Group)
	if err != nil {
		return err
	}
	found, home := findUser(passwd, name)
	want := owner
	if found == nil || found.uid == 0 || want.uid == 0 || want.uid == unmapped {
		return nil
	}
	// A group of the image is not handed over, nor that of root taken from the user. If only the
	// new id has an entry, that is from a start that was killed.
	if found.gid == 0 || want.gid == 0 || want.gid == unmapped || hasID(group, want.gid) && hasID(group, found.gid) {
		want.gid = found.gid
	}
	g := giver{from: *found, to: want, until: until}
	if *found == want {
		return goOn(cfg, home, g)
	}
	// What cannot be replaced is found before the home is given away.
	var files []*userFile
	defer func() {
		for _, f := range files {
			f.drop()
		}
	}()
	if want.gid != found.gid {
		f, err := writeUserFile(cfg.Group, withGroup(group, found.gid, want.gid))
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	f, err := writeUserFile(cfg.Passwd, withUser(passwd, name, want))
	if err != nil {
		return err
	}
	files = append(files, f)
	late, err := g.home(home, cfg.Boot.GetVolumes())
	if err != nil {
		return err
	}
	if late {
		if err := writeUnfinished(unfinishedIn(cfg.Passwd), g.from); err != nil {
			return err
		}
	}
	for _, f := range files {
		if err := f.replace(); err != nil {
			return err
		}
	}
	if late {
		return ErrHomeUnfinished
	}
	return nil
}

// goOn gives what an earlier start did not reach.
func goOn(cfg Config, home string, g giver) error {
	note := unfinishedIn(cfg.Passwd)
	raw, err := readUserFile(note)
	if raw == nil || err != nil {
		return err
	}
	parts := fields(raw[:min(len(raw), maxUnfinished)])
	if g.from = (userIDs{number(parts, 0), number(parts, 1)}); g.from.uid > 0 && g.from.gid >= 0 {
		if g.from.gid == 0 {
			g.from.gid = g.to.gid // a group of root is not handed over
		}
		late, err := g.home(home, cfg.Boot.GetVolumes())
		if err != nil {
			return err
		}
		if late && g.given > 0 {
			return ErrHomeUnfinished
		}
		if late {
			return cmp.Or(os.Remove(note), ErrHomeLeft)
		}
	}
	return os.Remove(note)
}

// unfinishedIn returns the path of the note of an unfinished home.
func unfinishedIn(passwd string) string {
	return filepath.Join(filepath.Dir(passwd), "."+filepath.Base(passwd)+".agbox-home")
}

// writeUnfinished is called before any process runs, when passwd was found behind no link.
func writeUnfinished(note string, old userIDs) error {
	if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(note, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%d:%d\n", old.uid, old.gid)
	return errors.Join(err, file.Sync(), file.Close())
}

// ownerOf returns the ids of the owner of a folder that is behind no link: the sandbox can put one
// into its workspace.
func ownerOf(path string) (userIDs, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return userIDs{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) // only looked at
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return userIDs{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return userIDs{int(st.Uid), int(st.Gid)}, nil
}

// fields are the parts of a line of a user file.
func fields(line []byte) []string {
	return strings.Split(string(bytes.TrimSuffix(line, []byte("\n"))), ":")
}

// number is the id in a line; -1 if there is none.
func number(parts []string, i int) int {
	if i >= len(parts) {
		return -1
	}
	n, err := strconv.ParseUint(parts[i], 10, 32)
	if err != nil {
		return -1
	}
	return int(n)
}

// isUser reports whether the parts are those of a user.
func isUser(parts []string, name string) bool {
	return parts[0] == name && len(parts) >= 6 && number(parts, 2) >= 0 && number(parts, 3) >= 0
}

// findUser returns the ids and the home of a user; nil if there is none.
func findUser(passwd []byte, name string) (*userIDs, string) {
	for line := range bytes.Lines(passwd) {
		if parts := fields(line); isUser(parts, name) {
			return &userIDs{number(parts, 2), number(parts, 3)}, parts[5]
		}
	}
	return nil, ""
}

// hasID reports whether a user file has an entry with an id.
func hasID(file []byte, id int) bool {
	for line := range bytes.Lines(file) {
		if number(fields(line), 2) == id {
			return true
		}
	}
	return false
}

// withUser returns passwd with other ids of a user. If another user has the id, the line is
// put before that one: programs take the first name of an id.
func withUser(passwd []byte, name string, to userIDs) []byte {
	lines := slices.Collect(bytes.Lines(passwd))
	i := slices.IndexFunc(lines, func(line []byte) bool { return isUser(fields(line), name) })
	parts := fields(lines[i])
	parts[2], parts[3] = strconv.Itoa(to.uid), strconv.Itoa(to.gid)
	lines = slices.Delete(lines, i, i+1)
	if other := slices.IndexFunc(lines, func(line []byte) bool { return number(fields(line), 2) == to.uid }); other >= 0 {
		i = min(i, other)
	}
	if i > 0 && !bytes.HasSuffix(lines[i-1], []byte("\n")) {
		lines[i-1] = append(slices.Clone(lines[i-1]), '\n')
	}
	return bytes.Join(slices.Insert(lines, i, []byte(strings.Join(parts, ":")+"\n")), nil)
}

// withGroup returns group with another id of a group.
func withGroup(group []byte, from, to int) []byte {
	var out []byte
	for line := range bytes.Lines(group) {
		if parts := fields(line); number(parts, 2) == from {
			parts[2] = strconv.Itoa(to)
			line = []byte(strings.Join(parts, ":") + "\n")
		}
		out = append(out, line...)
	}
	return out
}

// userFile is a new version of a user file that lies beside it.
type userFile struct {
	path, name, temp string
	// dir is the folder.
	dir int
}

// writeUserFile writes a new version of a file, with its owner and mode, unless its folder or the
// file itself lies on a mount or behind a link. The caller drops it.
func writeUserFile(path string, content []byte) (*userFile, error) {
	dir, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	f := &userFile{path: path, name: filepath.Base(path), temp: "." + filepath.Base(path) + ".agbox", dir: dir}
	if err := f.write(content); err != nil {
		f.drop()
		return nil, err
	}
	return f, nil
}

func (f *userFile) write(content []byte) error {
	old, err := unix.Openat2(f.dir, f.name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: f.path, Err: err}
	}
	defer unix.Close(old) // only looked at
	var st unix.Stat_t
	if err := unix.Fstat(old, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return &fs.PathError{Op: "replace", Path: f.path, Err: cmp.Or(err, error(unix.ELOOP))}
	}
	if err := unix.Unlinkat(f.dir, f.temp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: f.temp, Err: err}
	}
	fd, err := unix.Openat(f.dir, f.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: f.temp, Err: err}
	}
	file := os.NewFile(uintptr(fd), f.temp)
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Chown(int(st.Uid), int(st.Gid)), file.Chmod(fs.FileMode(st.Mode&0o777)), file.Close())
	if err != nil {
		return fmt.Errorf("write beside %s: %w", f.path, err)
	}
	return nil
}

func (f *userFile) replace() error {
	if err := unix.Renameat(f.dir, f.temp, f.dir, f.name); err != nil {
		return &fs.PathError{Op: "rename", Path: f.path, Err: err}
	}
	return nil
}

// drop removes what did not replace the file.
func (f *userFile) drop() {
	_ = unix.Unlinkat(f.dir, f.temp, 0) // mostly it has replaced the file
	_ = unix.Close(f.dir)               // only used to name files
}

type giver struct {
	from, to userIDs
	until    time.Time
	// late is true once it has left something out because the time was over.
	late bool
	// given counts the files that have another owner now.
	given int
}

// home gives a user with new ids what it owns in its home, and in volumes there. It follows
// no links and leaves what is mounted from the host: that is not the sandbox's. What it does
// not reach in time keeps its owner; then late is true. If the home itself cannot be given,
// nothing is.
func (g *giver) home(home string, volumes []string) (late bool, err error) {
	if !filepath.IsAbs(home) || filepath.Clean(home) == "/" {
		return false, nil
	}
	if err := g.tree(home, unix.RESOLVE_NO_XDEV); err != nil {
		return false, err
	}
	for _, target := range volumes {
		if strings.HasPrefix(filepath.Clean(target)+"/", filepath.Clean(home)+"/") {
			_ = g.tree(target, 0) // it may be read-only
		}
	}
	return g.late, nil
}

// tree gives a folder and what is in it. One that is missing, behind a link or, with
// RESOLVE_NO_XDEV, on a mount is left alone.
func (g *giver) tree(path string, resolve uint64) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: "/", Err: err}
	}
	defer unix.Close(root) // only used to open the folder
	dir, err := unix.Openat2(root, strings.TrimLeft(path, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolve | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil
	}
	folder := os.NewFile(uintptr(dir), path)
	defer folder.Close() // only read
	if err := g.give(dir); err != nil {
		return &fs.PathError{Op: "chown", Path: path, Err: err}
	}
	g.inside(folder, matchDepth)
	return nil
}

// give changes the owner of an open file, as far as that was the user.
func (g *giver) give(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	uid, gid := -1, -1
	if int(st.Uid) == g.from.uid {
		uid = g.to.uid
	}
	if int(st.Gid) == g.from.gid && g.to.gid != g.from.gid {
		gid = g.to.gid
	}
	if uid < 0 && gid < 0 {
		return nil
	}
	err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH)
	if err == nil {
		g.given++
	}
	return err
}

// inside gives what is in a folder.
func (g *giver) inside(folder *os.File, depth int) {
	for depth > 0 {
		entries, err := folder.ReadDir(256)
		for _, entry := range entries {
			if g.late = g.late || !time.Now().Before(g.until); g.late {
				return
			}
			g.entry(folder, entry, depth)
		}
		if err != nil {
			return
		}
	}
}

func (g *giver) entry(folder *os.File, entry fs.DirEntry, depth int) {
	open := func(dir int, name string, flags uint64) (int, error) {
		return unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV})
	}
	fd, err := open(int(folder.Fd()), entry.Name(), unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return // gone, or a mount
	}
	defer unix.Close(fd) // only a name
	_ = g.give(fd)       // the others are given
	if !entry.IsDir() {
		return
	}
	if sub, err := open(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
		below := os.NewFile(uintptr(sub), entry.Name())
		defer below.Close() // only read
		g.inside(below, depth-1)
	}
}
