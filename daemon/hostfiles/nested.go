package hostfiles

import (
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/covers"
)

// maxFolders bounds the folders of a mount in which repositories are looked for. Those near
// the top are looked at first.
const maxFolders = 50_000

// inGit are the folders of a folder of git in which no repositories are, or in which
// gitWalk finds them.
var inGit = []string{"objects", "refs", "logs", "modules", "worktrees"}

// nestedWalk finds the repositories of git in a folder, besides its own: a folder with
// .git, as a folder or a file, or a folder that is itself one of git. It follows no
// symbolic link.
type nestedWalk struct {
	held *Source
	// most is how many folders are looked at.
	most int
	// repositories are folders of git, and files are .git files, relative to the folder.
	repositories, files []string
	// unread means that a folder could not be read, so that it may have more.
	unread bool
}

// look looks at all folders, those near the top first. It passes over the folder's own
// folder of git, which has the name own, or is the folder itself. It returns false if there
// are more folders or repositories than it looks at.
func (n *nestedWalk) look(own string) bool {
	next := []string{"."}
	for i := 0; i < len(next); i++ {
		if i == n.most || len(n.repositories)+len(n.files) > maxGitFolders {
			return false
		}
		dir := next[i]
		entries := n.list(dir)
		if dir != "." && bare(entries) {
			n.repositories = append(n.repositories, dir)
			continue
		}
		for _, e := range entries {
			at := path.Join(dir, e.Name())
			switch {
			case at == ".git" || own == "." && slices.Contains(inGit, at):
			case e.IsDir() && covers.Same(e.Name(), ".git"):
				n.repositories = append(n.repositories, at)
			case covers.Same(e.Name(), ".git"):
				n.files = append(n.files, at)
			case e.IsDir():
				next = append(next, at)
			}
		}
		next[i] = "" // a large tree keeps no names of what was looked at
	}
	return true
}

// bare reports whether a folder with these entries is one of git.
func bare(entries []os.DirEntry) bool {
	return covers.Repository(func(name string) bool {
		return slices.ContainsFunc(entries, func(e os.DirEntry) bool { return covers.Same(e.Name(), name) })
	})
}

// isGone reports whether an error means that a folder does not exist, or has been replaced by
// something that is none. Whoever can write in a mount could otherwise hide a repository from
// the search by its mode.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// list returns the entries of a folder by name; none if it cannot be read or has been
// replaced by a link.
func (n *nestedWalk) list(dir string) []os.DirEntry {
	fd, err := unix.Openat2(int(n.held.file.Fd()), dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		n.unread = n.unread || !isGone(err)
		return nil
	}
	file := os.NewFile(uintptr(fd), dir)
	defer file.Close() // only read
	entries, err := file.ReadDir(-1)
	n.unread = n.unread || err != nil && !isGone(err)
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries
}
