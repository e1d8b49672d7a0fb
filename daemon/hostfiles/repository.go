package hostfiles

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/archive"
)

// Repository is where git keeps what belongs to a work tree whose .git is a file: that of
// a worktree, or of a submodule.
type Repository struct {
	// Own is the folder that belongs to the work tree alone. Common is the one that all
	// worktrees share. They are the same for a submodule.
	Own, Common string
	// Said is the path of Own as the .git file has it.
	Said string
}

// maxGitFile bounds the files of git that are read here, in bytes.
const maxGitFile = 1 << 20

// FindRepository finds the repository of a folder without a .git folder. It returns nil if
// the folder has no .git file, or if what that leads to does not lead back: anybody could
// have written the file, but only the owner of a repository can write there. Errors are
// plain.
func FindRepository(folder string) (*Repository, error) {
	if st, err := os.Lstat(folder + "/.git"); err != nil || !st.Mode().IsRegular() {
		return nil, nil //nolint:nilerr // no work tree of git, or one with its repository in it
	}
	text, err := readGit(folder + "/.git")
	said, ok := strings.CutPrefix(string(text), "gitdir: ")
	if err == nil && !ok {
		err = errNoRepository
	}
	if err != nil {
		return nil, plain(err)
	}
	r := &Repository{Said: strings.TrimRight(said, "\r\n")}
	if r.Own, err = resolveFrom(folder, r.Said); err != nil {
		return nil, plain(err)
	}
	if _, err := readGit(r.Own + "/HEAD"); err != nil {
		return nil, errNoRepository
	}
	r.Common = r.Own
	shared, err := readGit(r.Own + "/commondir")
	if errors.Is(err, unix.ENOENT) {
		if err := r.ofSubmodule(folder); err != nil {
			return nil, err
		}
		return r, nil
	}
	if err != nil {
		return nil, plain(err)
	}
	if r.Common, err = resolveFrom(r.Own, trimLine(shared)); err != nil {
		return nil, plain(err)
	}
	if err := r.ofWorktree(folder); err != nil {
		return nil, err
	}
	return r, nil
}

var errNoRepository = errors.New("its .git file leads to no repository of git that leads back to it (see `git worktree repair`)")

// ofWorktree checks that a worktree is one of its repository.
func (r *Repository) ofWorktree(folder string) error {
	back, err := readGit(r.Own + "/gitdir")
	if err != nil || filepath.Join(r.Common, "worktrees", filepath.Base(r.Own)) != r.Own {
		return errNoRepository
	}
	file := trimLine(back)
	if !filepath.IsAbs(file) {
		file = filepath.Join(r.Own, file)
	}
	if filepath.Base(file) != ".git" || !sameFile(filepath.Dir(file), folder) {
		return errNoRepository
	}
	if _, err := os.Lstat(r.Common + "/reftable"); err == nil {
		return errors.New("its repository keeps references in reftables")
	}
	return nil
}

// ofSubmodule checks that the settings of a repository name the folder.
func (r *Repository) ofSubmodule(folder string) error {
	config, err := readGit(r.Own + "/config")
	if err != nil {
		return errNoRepository
	}
	for line := range strings.Lines(string(config)) {
		key, value, _ := strings.Cut(line, "=")
		to := strings.Trim(strings.TrimSpace(value), `"`)
		if !strings.EqualFold(strings.TrimSpace(key), "worktree") || to == "" {
			continue
		}
		if to, err := resolveFrom(r.Own, to); err == nil && sameFile(to, folder) {
			return nil
		}
	}
	return errNoRepository
}

// Worktree reports whether the work tree is one of several of its repository.
func (r *Repository) Worktree() bool { return r.Own != r.Common }

// Inside returns the path at which git looks for Common in a sandbox that has the work tree
// at a path.
func (r *Repository) Inside(workTree string) string {
	if filepath.IsAbs(r.Said) {
		return filepath.Join(r.Said, "../..")
	}
	return path.Join(workTree, r.Said, "../..")
}

// trimLine returns a text without the end of its line.
func trimLine(text []byte) string { return strings.TrimRight(string(text), "\r\n") }

// resolveFrom resolves a path that is relative to a folder, with all symbolic links.
func resolveFrom(folder, to string) (string, error) {
	if !filepath.IsAbs(to) {
		to = filepath.Join(folder, to)
	}
	return filepath.EvalSymlinks(to)
}

// readGit reads a small regular file of git. It follows no link.
func readGit(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close() // only read
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxGitFile {
		return nil, errNoRepository
	}
	text := make([]byte, st.Size())
	n, err := file.ReadAt(text, 0)
	if n == len(text) {
		err = nil
	}
	return bytes.Clone(text[:n]), err
}

// repositories replaces the .git files of a tree whose repository is outside of the tree:
// the copy gets a repository of its own, with the same branch, index and history.
type repositories struct {
	check Checker
	force bool
	// top is the path of the tree.
	top string
}

// Replace returns the repository for a path of the tree, or nil if it is no .git file whose
// repository can be copied.
func (r repositories) Replace(name string) (*archive.Folder, error) {
	if path.Base(name) != ".git" {
		return nil, nil
	}
	found, err := FindRepository(filepath.Join(r.top, path.Dir(name)))
	if found == nil || err != nil || within(found.Own, r.top) {
		return nil, nil // it is copied as it is
	}
	held, err := r.check.Hold(found.Common, Copied, r.force)
	if err != nil {
		return nil, nil //nolint:nilerr // the same: git alone does not work in the copy
	}
	defer held.Close()
	return found.folder(held)
}

// folder returns what makes a repository of its own.
func (r *Repository) folder(held *Source) (*archive.Folder, error) {
	below, err := filepath.Rel(r.Common, r.Own)
	if err != nil || held.Path != r.Common {
		return nil, err
	}
	common, err := unix.Open(held.again(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	config, err := readGit(held.again() + "/config")
	if err != nil {
		_ = unix.Close(common) // only read
		return nil, err
	}
	f := &archive.Folder{
		Parts: []archive.Part{{Dir: common, Skip: notShared}},
		Files: []archive.Content{{Name: "config", Data: ownConfig(config)}},
	}
	if !r.Worktree() {
		f.Parts[0].Skip = notOwn
		return f, nil
	}
	own, err := unix.Openat2(common, below, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		_ = unix.Close(common) // only read
		return nil, &os.PathError{Op: "open", Path: r.Own, Err: err}
	}
	f.Parts = append(f.Parts, archive.Part{Dir: own, Skip: notOwn})
	return f, nil
}

// ownConfig returns the settings of a repository for its copy: it has a work tree, which is
// the folder above.
func ownConfig(config []byte) []byte {
	text := strings.TrimRight(string(config), "\n") + "\n[core]\n\tbare = false\n"
	if strings.Contains(strings.ToLower(string(config)), "worktree") {
		text += "\tworktree = ..\n"
	}
	return []byte(text)
}

// ofOneTree are the paths that each worktree has for itself, as in gitrepository-layout(5).
var ofOneTree = []string{
	"HEAD", "index", "config.worktree", "info/sparse-checkout", "logs/HEAD", "logs/refs/bisect", "logs/refs/rewritten", "logs/refs/worktree",
	"refs/bisect", "refs/rewritten", "refs/worktree", "rebase-merge", "rebase-apply", "sequencer", "worktrees", "modules",
	"COMMIT_EDITMSG", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "SQUASH_MSG", "AUTO_MERGE",
}

// notShared reports whether a path of a repository is left out of the copy of one worktree.
// Hooks of the host run programs of the host, so they are left out too.
func notShared(name string) bool {
	return slices.Contains(ofOneTree, name) || strings.HasSuffix(name, "_HEAD") && !strings.Contains(name, "/") ||
		strings.HasPrefix(name, "BISECT_") || strings.HasPrefix(name, "sharedindex.") || notOwn(name)
}

// notOwn reports whether a path of the folder of one work tree is left out of its copy.
// Submodules get repositories of their own.
func notOwn(name string) bool {
	return slices.Contains([]string{"config", "hooks", "commondir", "gitdir", "locked", "worktrees", "modules"}, name)
}

const (
	// maxBorrowed bounds the folders of objects that a repository borrows, and maxBorrowing
	// how often one borrows from another, as in git.
	maxBorrowed  = 16
	maxBorrowing = 5
)

// Borrowed is a folder with objects of git that a repository has not itself, as those of
// `git clone --shared` and --reference (objects/info/alternates). Anybody could have written
// that file, so nothing that it names is copied or mounted on its word.
type Borrowed struct {
	// Source is the folder on the host, and Inside where git looks for it in the sandbox.
	Source, Inside string
}

// FindBorrowed returns the folders of objects that the repository of a work tree borrows and
// that are not in the work tree. The sandbox has the work tree at target, mounted or copied.
func FindBorrowed(folder, target string, mounted bool) []Borrowed {
	b := borrowing{target: target}
	from, inside := folder+"/.git", path.Join(target, ".git")
	if found, err := FindRepository(folder); err == nil && found != nil {
		if from = found.Common; mounted {
			inside = found.Inside(target)
		}
	}
	b.look(from+"/objects", path.Join(inside, "objects"), 0)
	return b.found
}

type borrowing struct {
	target string
	found  []Borrowed
}

// look adds what a folder of objects borrows. inside is its path in the sandbox.
func (b *borrowing) look(objects, inside string, depth int) {
	text, err := readGit(objects + "/info/alternates")
	if err != nil || depth == maxBorrowing {
		return
	}
	for line := range strings.Lines(string(text)) {
		line = trimLine([]byte(line))
		if line == "" || strings.HasPrefix(line, "#") || len(b.found) == maxBorrowed {
			continue
		}
		one := Borrowed{Source: filepath.Clean(line), Inside: path.Clean(line)}
		if !filepath.IsAbs(line) {
			one = Borrowed{Source: filepath.Join(objects, line), Inside: path.Join(inside, line)}
		}
		if !strings.HasPrefix(one.Inside, path.Clean(b.target)+"/") {
			b.found = append(b.found, one)
		}
		b.look(one.Source, one.Inside, depth+1)
	}
}
