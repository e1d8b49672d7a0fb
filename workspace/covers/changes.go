package covers

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/workspace/edits"
)

// Executable is what a sandbox brings to a folder of this machine and what programs of this
// machine execute, agents read as instructions or agbox reads the next time, because it is
// there.
type Executable struct {
	// Path is relative to the folder, "." is the folder itself. Letter is A, M or D, as for
	// git: it is added, modified or removed.
	Path, Letter string
	// Who executes it, and When, as the rest of a sentence.
	Who, When string
	// Repository means that git takes the folder at Path for a repository.
	Repository bool
	// changes are the changes that it stands for.
	changes []edits.Change
}

// Agree decides whether a folder of this machine gets such files. If not, they are left out,
// and the rest comes.
type Agree func(ctx context.Context, folder string, found []Executable) (bool, error)

// Consent remembers what Agree has decided. Its zero value agrees.
type Consent struct {
	Agree Agree
	known map[answered]bool
}

// answered is a version of a file that was asked about. after is empty if it is removed.
type answered struct {
	path, from string
	after      edits.File
	removed    bool
}

func answerFor(c edits.Change) answered {
	a := answered{path: c.Path, from: c.From, removed: c.After == nil}
	if c.After != nil {
		a.after = *c.After
	}
	return a
}

// Decide separates what comes to a folder from what is left out.
func (c *Consent) Decide(ctx context.Context, folder string, changes []edits.Change) (come []edits.Change, left []Executable, err error) {
	found := Executables(folder, changes)
	if c.Agree == nil || len(found) == 0 {
		return changes, nil, nil
	}
	if c.known == nil {
		c.known = make(map[answered]bool)
	}
	var open []Executable
	for _, one := range found {
		if slices.ContainsFunc(one.changes, func(w edits.Change) bool { _, ok := c.known[answerFor(w)]; return !ok }) {
			open = append(open, one)
		}
	}
	if len(open) > 0 {
		yes, err := c.Agree(ctx, folder, open)
		if err != nil {
			return nil, nil, err
		}
		for _, one := range open {
			for _, w := range one.changes {
				c.known[answerFor(w)] = yes
			}
		}
	}
	out := make(map[string]bool)
	for _, one := range found {
		if slices.ContainsFunc(one.changes, func(w edits.Change) bool { return !c.known[answerFor(w)] }) {
			left = append(left, one)
			for _, w := range one.changes {
				out[w.Path] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(changes), func(w edits.Change) bool { return out[w.Path] }), left, nil
}

// Without returns the paths of the changes that were left out; none for a check.
func Without(left []Executable, check bool) map[string]bool {
	paths := make(map[string]bool)
	for _, one := range left {
		for _, w := range one.changes {
			paths[w.Path] = !check
		}
	}
	return paths
}

// Executables returns what this machine would execute of some changes of a folder, sorted by
// path: repositories of git, and the files of Table. What the folder has already is
// not among them.
func Executables(folder string, changes []edits.Change) (all []Executable) {
	repositories := repositoriesOf(folder, changes)
	for _, w := range changes {
		dir, inGit := repositories.of(w)
		row, ok := Find(filepath.Join(folder, w.Path))
		if !ok && w.From != "" {
			row, ok = Find(filepath.Join(folder, w.From))
		}
		if !inGit && !ok || has(folder, w) {
			continue
		}
		letter := "M"
		switch {
		case w.After == nil:
			letter = "D"
		case w.Before == nil || w.From != "":
			letter = "A"
		}
		if !inGit {
			all = append(all, Executable{Path: w.Path, Letter: letter, Who: row.Who, When: row.When, changes: []edits.Change{w}})
		} else if i := slices.IndexFunc(all, func(e Executable) bool { return e.Repository && e.Path == dir }); i >= 0 {
			all[i].changes = append(all[i].changes, w)
		} else {
			all = append(all, Executable{Path: dir, Letter: letter, Who: "git", When: repositoryWhen, Repository: true, changes: []edits.Change{w}})
		}
	}
	return all
}

// Submodules returns what git of this machine does with the submodules of commits.
func Submodules(changes []edits.Change) (all []Executable) {
	for _, c := range changes {
		letter := "M"
		if c.Before == nil {
			letter = "A"
		}
		all = append(all, Executable{Path: c.Path, Letter: letter, Who: "git", When: "at `git submodule update`, which fetches files that nobody has looked at"})
	}
	return all
}

// repositoryWhen is when git executes the settings of a repository.
const repositoryWhen = "takes it for a repository, and executes its settings at any command in it"

// has reports whether a folder has a change already.
func has(folder string, w edits.Change) bool {
	now, _, err := edits.ReadFile(folder, w.Path)
	if w.After == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return err == nil && w.From == "" && edits.Same(now, w.After)
}

// repositories are the folders that git takes for repositories.
type repositories map[string]bool

// repositoriesOf returns the folders of git that some changes make, or change, together with
// what is in the folder already.
func repositoriesOf(folder string, changes []edits.Change) repositories {
	parts := make(map[string]map[string]bool) // of each folder, those that the changes touch
	for _, w := range changes {
		for _, name := range []string{w.Path, w.From} {
			for dir, part := range gitPartsOf(name) {
				if parts[dir] == nil {
					parts[dir] = make(map[string]bool)
				}
				parts[dir][part] = parts[dir][part] || w.After != nil && name == w.Path
			}
		}
	}
	all := make(repositories)
	for dir, touched := range parts {
		all[dir] = Repository(func(name string) bool {
			_, err := os.Lstat(filepath.Join(folder, dir, name))
			return touched[name] || err == nil
		})
	}
	return all
}

// gitPartsOf yields each folder above a path of which the path is a part of git, and the part.
func gitPartsOf(name string) func(yield func(dir, part string) bool) {
	return func(yield func(dir, part string) bool) {
		dir := "."
		for at := range strings.SplitSeq(name, "/") {
			if part := GitPart(at); part != "" && !yield(dir, part) {
				return
			}
			dir = filepath.Join(dir, at)
		}
	}
}

// of returns the outermost repository that a change is a part of.
func (r repositories) of(w edits.Change) (string, bool) {
	for _, name := range []string{w.Path, w.From} {
		for dir := range gitPartsOf(name) {
			if r[dir] {
				return dir, true
			}
		}
	}
	return "", false
}

// Watch finds what a copy from a sandbox brings to a folder and this machine would execute, or
// git would take for a repository. It leaves out what may not come.
type Watch struct {
	root *os.Root
	dir  string
	// may decides about each; nil means that all may come.
	may func(Executable) bool
	// before is what each file that comes was before the copy, by its name in dir.
	before map[string]string
	// came is what comes, if it changes something, and left what is left out, by name.
	came, left map[string]Executable
	// repositories are folders that are of git already.
	repositories map[string]bool
}

// NewWatch prepares the watch of a directory. Close must be called.
func NewWatch(dir string, may func(Executable) bool) (*Watch, error) {
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	return &Watch{
		root: root, dir: abs, may: may, before: make(map[string]string),
		came: make(map[string]Executable), left: make(map[string]Executable), repositories: make(map[string]bool),
	}, nil
}

// Close ends the watch.
func (w *Watch) Close() { _ = w.root.Close() } // only read

// Hold is archive.UnpackOptions.Hold.
func (w *Watch) Hold(h *tar.Header, name string, content io.Reader) (bool, error) {
	one, ok := w.find(h, name)
	if !ok {
		return false, nil
	}
	_, known := w.before[name]
	if w.may == nil || w.may(one) {
		if !known {
			w.before[name], w.came[name] = w.state(name), one
		}
		return false, nil
	}
	if h.Typeflag != tar.TypeDir {
		same, err := w.same(h, name, content)
		if same || err != nil {
			return true, err
		}
	}
	w.left[name] = one
	return true, nil
}

// find returns what the host executes of an entry.
func (w *Watch) find(h *tar.Header, name string) (one Executable, ok bool) {
	isDir := h.Typeflag == tar.TypeDir
	if folder, ok := w.repository(name, isDir); ok {
		return Executable{Path: filepath.Join(w.dir, folder), Letter: "A", Who: "git", When: repositoryWhen, Repository: true}, true
	}
	if isDir {
		return one, false
	}
	row, ok := Find(filepath.Join(w.dir, name))
	if !ok {
		row, ok = Find(filepath.Join(w.dir, w.inRepository(name)))
	}
	if !ok && h.Typeflag == tar.TypeLink {
		target, left := w.left[path.Clean(h.Linkname)] // there is nothing to link to
		row, ok = Entry{Who: target.Who, When: target.When}, left
	}
	if !ok {
		return one, false
	}
	letter := "M"
	if _, err := w.root.Lstat(name); err != nil {
		letter = "A"
	}
	return Executable{Path: filepath.Join(w.dir, name), Letter: letter, Who: row.Who, When: row.When}, true
}

// repository returns the folder that an entry makes one of git, together with what is there
// already. All of a new .git is a part of it.
func (w *Watch) repository(name string, isDir bool) (folder string, ok bool) {
	for dir, part := range gitPartsOf(name) {
		if !w.isRepository(dir, "") && w.isRepository(dir, part) {
			return dir, true
		}
	}
	folder, rest, above := ".", name, true
	for above {
		var first string
		first, rest, above = strings.Cut(rest, "/")
		folder = path.Join(folder, first)
		// A file .git is in the table.
		if (above || isDir) && Same(first, ".git") && !w.isRepository(folder, "") {
			return folder, true
		}
	}
	return "", false
}

// inRepository returns a name as it would be in a .git, if it is in another folder of git.
func (w *Watch) inRepository(name string) string {
	for dir := range gitPartsOf(name) {
		if w.isRepository(dir, "") {
			return path.Join(".git", strings.TrimPrefix(name, dir+"/"))
		}
	}
	return name
}

// isRepository reports whether a folder is one of git, or is with one part more.
func (w *Watch) isRepository(dir, more string) bool {
	if more == "" && w.repositories[dir] {
		return true
	}
	is := Repository(func(part string) bool {
		_, err := w.root.Lstat(path.Join(dir, part))
		return part == more || err == nil
	})
	if is && more == "" {
		w.repositories[dir] = true
	}
	return is
}

// same reports whether an entry changes nothing.
func (w *Watch) same(h *tar.Header, name string, content io.Reader) (bool, error) {
	switch h.Typeflag {
	case tar.TypeSymlink:
		return w.state(name) == "link "+h.Linkname, nil
	case tar.TypeLink:
		return w.state(name) != "" && w.state(name) == w.state(path.Clean(h.Linkname)), nil
	case tar.TypeFifo, tar.TypeChar, tar.TypeBlock:
		return false, nil
	}
	st, err := w.root.Lstat(name)
	if err != nil || st.Size() != h.Size {
		return false, nil //nolint:nilerr // the content, which may be of any size, is not read
	}
	sum := sha256.New()
	_, err = io.Copy(sum, content)
	return w.state(name) == fileState(fs.FileMode(h.Mode), sum.Sum(nil), nil), err
}

// Result returns what came and changed something, and what was left out, each by path. What is
// below a repository is a part of it.
func (w *Watch) Result() (came, left []Executable) {
	for _, name := range slices.Sorted(maps.Keys(w.came)) {
		if w.came[name].Repository || w.before[name] != w.state(name) {
			came = append(came, w.came[name])
		}
	}
	return Outermost(came), Outermost(slices.Collect(maps.Values(w.left)))
}

// Outermost sorts by path, and removes what is in another of them or is there twice.
func Outermost(all []Executable) (out []Executable) {
	slices.SortFunc(all, func(a, b Executable) int { return cmp.Compare(a.Path, b.Path) })
	for _, one := range all {
		if !slices.ContainsFunc(out, func(e Executable) bool {
			return e.Path == one.Path || e.Repository && strings.HasPrefix(one.Path, e.Path+"/")
		}) {
			out = append(out, one)
		}
	}
	return out
}

// state stands for the content of a file; "" if there is none.
func (w *Watch) state(name string) string {
	st, err := w.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil || !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0:
		return fmt.Sprint("other ", err)
	case st.Mode()&fs.ModeSymlink != 0:
		to, _ := w.root.Readlink(name)
		return "link " + to
	}
	file, err := w.root.Open(name)
	if err != nil {
		return fmt.Sprint("other ", err)
	}
	defer file.Close() // only read
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return fileState(st.Mode(), sum.Sum(nil), err)
}

func fileState(mode fs.FileMode, sum []byte, err error) string {
	return fmt.Sprintf("file %v %x %v", mode.Perm(), sum, err)
}
