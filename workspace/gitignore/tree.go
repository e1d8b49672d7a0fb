package gitignore

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/agbox/agbox/internal/filesystem"
)

const (
	// MaxFile is the maximum size of a .gitignore file in bytes, and maxFiles that of
	// all that apply to one folder. Real ones are much smaller.
	MaxFile  = 1 << 20
	maxFiles = 4 << 20
	// maxTogether is the maximum number of patterns in all .gitignore files that apply to
	// one folder.
	maxTogether = 20_000
	// maxCompared limits the matching of one tree, in compared bytes. It is 10 to 20 s of
	// one CPU, and enough for a million files with 1000 usual patterns.
	maxCompared = 3_000_000_000
)

// Inside reports whether a path below the top of a tree belongs to the inside of a git
// repository, in any case of letters, or may do so on some file systems: by the short name, with
// dots and spaces at its end, as a stream, or with backslashes for slashes. These are the names that
// git refuses. It also refuses symbolic links such as .gitmodules.
func Inside(path string) bool {
	for part := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		part, _, _ = strings.Cut(part, ":")
		part = strings.TrimRight(part, ". ")
		if strings.EqualFold(part, ".git") || strings.EqualFold(part, "git~1") {
			return true
		}
	}
	return false
}

// InRepository is Inside without the names that mean a repository on other file systems only.
func InRepository(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if strings.EqualFold(part, ".git") {
			return true
		}
	}
	return false
}

// Tree excludes what patterns name while a tree is walked: it is an archive.Filter.
type Tree struct {
	// excludes take precedence, like command-line patterns in git.
	excludes Rules
	// use means that .gitignore files apply. found are those of the folder that was
	// entered last and of its parents.
	use   bool
	found []ignoreFile
	// budget is what is left of maxCompared.
	budget Budget
}

type ignoreFile struct {
	dir   string
	rules Rules
	// size is that of the file in bytes.
	size int
}

// FileError is the error for patterns that cannot be used.
type FileError struct {
	// Listed is true for the patterns given to NewTree. Otherwise they are those of the
	// .gitignore in Dir, relative to the top.
	Listed bool
	Dir    string
	Err    error
}

// Error returns where the patterns are, and what is wrong.
func (e *FileError) Error() string {
	if e.Listed {
		return e.Err.Error()
	}
	return strings.TrimPrefix(e.Dir+"/.gitignore", "/") + ": " + e.Err.Error()
}

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

// NewTree makes a Tree with the given patterns. use says whether .gitignore files apply
// too. Its errors and those of the methods that are about patterns are FileErrors.
func NewTree(excludes []string, use bool) (*Tree, error) {
	rules, err := Patterns(excludes)
	if err != nil {
		return nil, &FileError{Listed: true, Err: err}
	}
	return &Tree{excludes: rules, use: use, budget: Budget{Left: maxCompared}}, nil
}

// Excludes reports whether the given patterns, and no .gitignore file, name a file or a folder above
// it.
func (t *Tree) Excludes(path string) bool {
	for at := range len(path) {
		if path[at] == '/' {
			if skip, err := t.Skip(path[:at], true); skip || err != nil {
				return true
			}
		}
	}
	skip, err := t.Skip(path, false)
	return skip || err != nil
}

// Enter reads the folder's own .gitignore. dir is the open folder.
func (t *Tree) Enter(name string, dir int) error {
	if !t.use {
		return nil
	}
	text, err := readFile(dir)
	return t.enter(name, text, err)
}

// EnterText is Enter for a folder whose .gitignore is text, or empty if it has none.
func (t *Tree) EnterText(name, text string) (err error) {
	if !t.use {
		return nil
	}
	if len(text) > MaxFile {
		err = tooLong()
	}
	return t.enter(name, text, err)
}

// enter enters a folder whose .gitignore was read.
func (t *Tree) enter(name, text string, err error) error {
	for len(t.found) > 0 {
		if last := t.found[len(t.found)-1].dir; last == "" || within(name, last) {
			break
		}
		t.found = t.found[:len(t.found)-1]
	}
	var rules Rules
	if err == nil {
		rules, err = t.parse(name, text)
	}
	if errors.As(err, new(*LineError)) || errors.Is(err, errTooLarge) {
		return &FileError{Dir: name, Err: err}
	}
	if err == nil && rules.Len() > 0 {
		t.found = append(t.found, ignoreFile{name, rules, len(text)})
	}
	return err
}

// within reports whether a path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// parse parses the .gitignore of a folder, within the limits of all that apply there.
func (t *Tree) parse(dir, text string) (Rules, error) {
	rules, err := Parse(dir, text)
	if err != nil {
		return rules, err
	}
	size, patterns := len(text), rules.Len()
	for _, parent := range t.found {
		size, patterns = size+parent.size, patterns+parent.rules.Len()
	}
	switch {
	case size > maxFiles:
		return rules, fmt.Errorf("%w: together with those of the folders above more than %d MiB", errTooLarge, maxFiles>>20)
	case patterns > maxTogether:
		return rules, fmt.Errorf("%w: together with those of the folders above more than %d patterns", errTooLarge, maxTogether)
	}
	return rules, nil
}

// errTooLarge is the error for a .gitignore beyond a limit.
var errTooLarge = errors.New("it is too large")

func tooLong() error { return fmt.Errorf("%w: more than %d MiB", errTooLarge, MaxFile>>20) }

// readFile reads a .gitignore in an open folder. As in git, a symbolic link or a file
// that is not regular is ignored.
func readFile(dir int) (string, error) {
	text, err := filesystem.ReadWithinAt(dir, ".gitignore", MaxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, filesystem.ErrLink), errors.Is(err, filesystem.ErrIrregular):
		return "", nil
	case errors.Is(err, filesystem.ErrTooLarge):
		return "", tooLong()
	}
	return string(text), err
}

// Skip reports whether a path is excluded. It fails if the comparisons of the tree took
// too long.
func (t *Tree) Skip(name string, isDir bool) (bool, error) {
	if decided, out, err := t.excludes.Decide(name, isDir, &t.budget); err != nil {
		return false, &FileError{Listed: true, Err: err}
	} else if decided {
		return out, nil
	}
	if name == ".git" || strings.HasPrefix(name, ".git/") || strings.HasSuffix(name, "/.git") || strings.Contains(name, "/.git/") {
		return false, nil // git's own folder is not matched: a branch may be called "build"
	}
	for i := len(t.found) - 1; i >= 0; i-- {
		one := &t.found[i]
		if one.dir != "" && !within(name, one.dir) {
			continue
		}
		if decided, out, err := one.rules.Decide(name, isDir, &t.budget); err != nil {
			return false, &FileError{Dir: one.dir, Err: err}
		} else if decided {
			return out, nil
		}
	}
	return false, nil
}
