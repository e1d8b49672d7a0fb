package hostfiles

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/archive"
)

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
