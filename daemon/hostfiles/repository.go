package hostfiles

import (
	"bytes"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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
