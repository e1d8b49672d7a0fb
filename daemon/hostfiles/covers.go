package hostfiles

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/covers"
)

// Cover is a part of a folder that is mounted over itself in a sandbox.
type Cover struct {
	// Name is relative to the folder.
	Name string
	// ReadOnly is true for what the host would execute. A folder above it is mounted over
	// itself too, writable, because a mount point cannot be renamed.
	ReadOnly bool
}

const (
	// maxGitFolders bounds the folders of git that are covered: of repositories, their
	// submodules and worktrees.
	maxGitFolders = 64
	// maxGitDepth bounds how deep the name of a submodule is.
	maxGitDepth = 6
)

// Covers returns what is mounted over itself in a folder that is mounted writable, parents
// first. Only what exists can be covered. Errors are fault.Errors.
func (c Checker) Covers(held *Source) ([]Cover, error) {
	w, err := c.walk(held)
	switch {
	case err != nil:
		return nil, err
	case w.inside:
		return nil, refusal("Mounting %s writable is refused, because this machine executes what is in it, or agbox reads it: mount it read-only, or give the flag --writable-config if you mean it.", held.Path)
	case w.repositories > maxGitFolders:
		return nil, refusal("Mounting %s writable is refused, because it has more than %d repositories, submodules and worktrees of git, which cannot all be protected: copy it in, or give the flag --writable-config if you mean it.", held.Path, maxGitFolders)
	case len(w.links) > 0:
		return nil, refusal("Mounting %s writable is refused, because %s in it is a symbolic link, which cannot be protected: replace the link by what it leads to, or give the flag --writable-config if you mean it.", held.Path, w.links[0])
	case c.Thorough && !w.searched:
		return nil, refusal("Mounting %s writable is refused, because it could not be searched for repositories of git as a whole: it has more than %d folders, or some that agboxd may not read. Mount it read-only, or copy it in.", held.Path, maxFolders)
	}
	return w.all, nil
}

// walk finds what is to be covered in a source.
func (c Checker) walk(held *Source) (*coverWalk, error) {
	w := &coverWalk{held: held, searched: true, seen: make(map[string]int)}
	names, inside := covers.Below(held.Path, slices.Concat(covers.Names, c.Bound().Covers))
	if w.inside = inside; inside || !held.info.IsDir() {
		return w, nil
	}
	git := ".git"
	if path.Base(held.Path) == ".git" || held.isRepository() {
		git, names = ".", append(names, covers.GitNames...)
	}
	for _, name := range append(names, w.gitNames(git)...) {
		if err := w.add(name); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// isRepository reports whether a folder is one of git, whatever its name is.
func (s *Source) isRepository() bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if unix.Faccessat(unix.AT_FDCWD, s.again()+"/"+name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
	}
	return true
}

// coverWalk collects covers of a folder.
type coverWalk struct {
	held *Source
	all  []Cover
	// inside is true if the source is itself a part of what is covered.
	inside bool
	// links are symbolic links in the place of what is to be covered.
	links []string
	// repositories is how many repositories, submodules and worktrees were found; searched
	// is false if there may be more.
	repositories int
	searched     bool
	// bare are the repositories below that have no .git.
	bare []string
	// seen has the index of each cover.
	seen map[string]int
}

// add covers a name, if it exists, and pins the folders above it.
func (w *coverWalk) add(name string) error {
	parts := strings.Split(path.Clean(name), "/")
	for i := range parts {
		at := path.Join(parts[:i+1]...)
		var st unix.Stat_t
		err := unix.Fstatat(unix.AT_FDCWD, w.held.again()+"/"+at, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return nil
		case err != nil:
			return unusable(filepath.Join(w.held.Path, at), err)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			w.links = append(w.links, at)
			return nil
		case unix.S_IFDIR:
			w.put(at, i == len(parts)-1)
		default: // a file: nothing is below it, so it is covered itself, such as a .git file
			w.put(at, true)
			return nil
		}
	}
	return nil
}

// put adds one cover. What is read-only stays so, and covers what is below it.
func (w *coverWalk) put(name string, readOnly bool) {
	for above := path.Dir(name); above != "."; above = path.Dir(above) {
		if i, ok := w.seen[above]; ok && w.all[i].ReadOnly {
			return
		}
	}
	if i, ok := w.seen[name]; ok {
		w.all[i].ReadOnly = w.all[i].ReadOnly || readOnly
		return
	}
	w.seen[name] = len(w.all)
	w.all = append(w.all, Cover{Name: name, ReadOnly: readOnly})
}

// gitNames returns what makes git run commands, relative to the folder: in submodules and
// worktrees of its own folder of git, and in all repositories below it.
func (w *coverWalk) gitNames(git string) (names []string) {
	n := nestedWalk{held: w.held, most: maxFolders}
	whole := n.look(git)
	g := gitWalk{held: w.held, found: n.repositories}
	for _, folder := range append([]string{git}, n.repositories...) {
		g.folders(path.Join(folder, "modules"), 0, true)
		g.folders(path.Join(folder, "worktrees"), maxGitDepth, false)
	}
	w.searched = whole && !n.unread && !g.unread
	w.repositories = len(g.found) + len(n.files)
	w.bare = slices.DeleteFunc(slices.Clone(n.repositories), func(name string) bool { return covers.Same(path.Base(name), ".git") })
	for _, folder := range g.found {
		for _, name := range covers.GitNames {
			names = append(names, path.Join(folder, name))
		}
	}
	return append(names, n.files...)
}

// gitWalk finds folders of git.
type gitWalk struct {
	held  *Source
	found []string
	// unread means that a folder could not be read.
	unread bool
}

// folders finds the folders of git below a folder. A folder of git has a file HEAD.
func (g *gitWalk) folders(below string, depth int, deeper bool) {
	for _, name := range g.list(below) {
		one := path.Join(below, name)
		if len(g.found) > maxGitFolders {
			return
		}
		var st unix.Stat_t
		if unix.Fstatat(unix.AT_FDCWD, g.held.again()+"/"+one+"/HEAD", &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			g.found = append(g.found, one)
			if deeper && depth < maxGitDepth {
				g.folders(path.Join(one, "modules"), depth+1, true)
			}
		} else if depth < maxGitDepth {
			g.folders(one, depth+1, deeper)
		}
	}
}

// list returns the names in a folder; none if it cannot be read.
func (g *gitWalk) list(folder string) []string {
	dir, err := os.Open(g.held.again() + "/" + folder)
	if err != nil {
		g.unread = g.unread || !isGone(err)
		return nil
	}
	defer dir.Close() // only read
	names, err := dir.Readdirnames(-1)
	g.unread = g.unread || err != nil && !isGone(err)
	slices.Sort(names)
	return names
}

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

// Uncovered returns what Covers would make read-only if a sandbox were made now, and that
// is not among covered: the absolute paths of the read-only covers that a sandbox has. Of a
// repository of git without covers it returns only the folder of git. all is false if not
// everything could be searched.
func (c Checker) Uncovered(held *Source, covered map[string]bool) (found []string, all bool, err error) {
	w, err := c.walk(held)
	if err != nil || w.inside {
		return nil, true, err
	}
	told := make(map[string]bool)
	tell := func(name string) {
		if folder, _, inGit := strings.Cut(name, ".git/"); inGit && !protectsSome(covered, filepath.Join(held.Path, folder, ".git")) {
			name = folder + ".git"
		}
		for _, folder := range w.bare {
			if strings.HasPrefix(name, folder+"/") && !protectsSome(covered, filepath.Join(held.Path, folder)) {
				name = folder
			}
		}
		at := filepath.Join(held.Path, name)
		if !covered[at] && !told[at] {
			told[at] = true
			found = append(found, at)
		}
	}
	for _, folder := range w.bare {
		if !protectsSome(covered, filepath.Join(held.Path, folder)) {
			tell(folder) // git takes it for a repository, also without settings
		}
	}
	for _, one := range w.all {
		if one.ReadOnly {
			tell(one.Name)
		}
	}
	for _, link := range w.links {
		tell(link)
	}
	return found, w.searched, nil
}

// protectsSome reports whether something below a folder is covered.
func protectsSome(covered map[string]bool, folder string) bool {
	for at := range covered {
		if strings.HasPrefix(at, folder+"/") {
			return true
		}
	}
	return false
}

// Searched reports whether all folders of a source were searched for repositories of git.
func (c Checker) Searched(held *Source) bool {
	w, err := c.walk(held)
	return err != nil || w.searched
}
