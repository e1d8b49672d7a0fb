package hostfiles

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/gitignore"
)

const (
	// maxIgnore is the maximum size of a .gitignore file in bytes, and maxIgnores that of
	// all that apply to one folder. Real ones are much smaller.
	maxIgnore  = 1 << 20
	maxIgnores = 4 << 20
	// maxPatterns is the maximum number of patterns in all .gitignore files that apply to
	// one folder.
	maxPatterns = 20_000
	// maxCompared limits the matching of one copy, in compared bytes. It is 10 to 20 s of
	// one CPU, and enough for a million files with 1000 usual patterns.
	maxCompared = 3_000_000_000
)

// filter excludes what patterns name while a tree is walked.
type filter struct {
	// root is the path of the tree, for errors.
	root string
	// excludes take precedence, like command-line patterns in git.
	excludes gitignore.Rules
	// use means that .gitignore files apply. found are those of the folder that was
	// entered last and of its parents.
	use   bool
	found []ignoreFile
	// budget is what is left of maxCompared.
	budget gitignore.Budget
}

type ignoreFile struct {
	dir   string
	rules gitignore.Rules
	// size is that of the file in bytes.
	size int
}

func newFilter(one Copy) (*filter, error) {
	excludes, err := gitignore.Patterns(one.Excludes)
	if err != nil {
		return nil, badExcludes(err)
	}
	return &filter{root: one.Source, excludes: excludes, use: one.Gitignore, budget: gitignore.Budget{Left: maxCompared}}, nil
}

// badExcludes refuses patterns of the spec.
func badExcludes(err error) error {
	return refusal("The exclude_patterns cannot be used (%v): use fewer or simpler patterns.", err).Because(err)
}

// badIgnore refuses the .gitignore of a folder of the tree.
func (f *filter) badIgnore(dir string, err error) error {
	return refusal("%s cannot be used (%v): use fewer or simpler patterns there, or copy with 'use_gitignore: false'.",
		path.Join(f.root, dir, ".gitignore"), err).Because(err)
}

// Enter reads the folder's own .gitignore.
func (f *filter) Enter(name string, dir int) error {
	if !f.use {
		return nil
	}
	for len(f.found) > 0 {
		if last := f.found[len(f.found)-1].dir; last == "" || within(name, last) {
			break
		}
		f.found = f.found[:len(f.found)-1]
	}
	text, err := readIgnore(dir)
	var rules gitignore.Rules
	if err == nil {
		rules, err = f.parse(name, text)
	}
	if errors.As(err, new(*gitignore.LineError)) || errors.Is(err, errTooLarge) {
		return f.badIgnore(name, err)
	}
	if err == nil && rules.Len() > 0 {
		f.found = append(f.found, ignoreFile{name, rules, len(text)})
	}
	return err
}

// parse parses the .gitignore of a folder, within the limits of all that apply there.
func (f *filter) parse(dir, text string) (gitignore.Rules, error) {
	rules, err := gitignore.Parse(dir, text)
	if err != nil {
		return rules, err
	}
	size, patterns := len(text), rules.Len()
	for _, parent := range f.found {
		size, patterns = size+parent.size, patterns+parent.rules.Len()
	}
	switch {
	case size > maxIgnores:
		return rules, fmt.Errorf("%w: together with those of the folders above more than %d MiB", errTooLarge, maxIgnores>>20)
	case patterns > maxPatterns:
		return rules, fmt.Errorf("%w: together with those of the folders above more than %d patterns", errTooLarge, maxPatterns)
	}
	return rules, nil
}

// errTooLarge is the error for a .gitignore beyond a limit.
var errTooLarge = errors.New("it is too large")

// readIgnore reads a .gitignore in an open folder. As in git, a symbolic link or a file
// that is not regular is ignored.
func readIgnore(dir int) (string, error) {
	fd, err := unix.Openat(dir, ".gitignore", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	file := os.NewFile(uintptr(fd), ".gitignore")
	defer file.Close() // only read
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxIgnore+1))
	if err == nil && len(text) > maxIgnore {
		err = fmt.Errorf("%w: more than %d MiB", errTooLarge, maxIgnore>>20)
	}
	return string(text), err
}

// Skip reports whether a path is excluded. It fails if the comparisons of the copy took
// too long.
func (f *filter) Skip(name string, isDir bool) (bool, error) {
	if decided, out, err := f.excludes.Decide(name, isDir, &f.budget); err != nil {
		return false, badExcludes(err)
	} else if decided {
		return out, nil
	}
	if name == ".git" || strings.HasPrefix(name, ".git/") || strings.HasSuffix(name, "/.git") || strings.Contains(name, "/.git/") {
		return false, nil // git's own folder is not matched: a branch may be called "build"
	}
	for i := len(f.found) - 1; i >= 0; i-- {
		one := &f.found[i]
		if one.dir != "" && !within(name, one.dir) {
			continue
		}
		if decided, out, err := one.rules.Decide(name, isDir, &f.budget); err != nil {
			return false, f.badIgnore(one.dir, err)
		} else if decided {
			return out, nil
		}
	}
	return false, nil
}
