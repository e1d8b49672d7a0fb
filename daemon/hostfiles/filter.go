package hostfiles

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/gitignore"
)

// maxIgnore is the maximum size of a .gitignore file, in bytes. Real ones are much
// smaller.
const maxIgnore = 1 << 20

// filter excludes what patterns name while a tree is walked.
type filter struct {
	// excludes take precedence, like command-line patterns in git.
	excludes gitignore.Rules
	// use means that .gitignore files apply. found are those of the folder that was
	// entered last and of its parents.
	use   bool
	found []ignoreFile
}

type ignoreFile struct {
	dir   string
	rules gitignore.Rules
}

func newFilter(excludes []string, useGitignore bool) *filter {
	return &filter{excludes: gitignore.Patterns(excludes), use: useGitignore}
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
	if err == nil && text != "" {
		f.found = append(f.found, ignoreFile{name, gitignore.Parse(name, text)})
	}
	return err
}

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
	text, err := io.ReadAll(io.LimitReader(file, maxIgnore))
	return string(text), err
}

// Skip reports whether a path is excluded.
func (f *filter) Skip(name string, isDir bool) bool {
	if decided, out := f.excludes.Decide(name, isDir); decided {
		return out
	}
	if name == ".git" || strings.HasPrefix(name, ".git/") || strings.HasSuffix(name, "/.git") || strings.Contains(name, "/.git/") {
		return false // git's own folder is not matched: a branch may be called "build"
	}
	for i := len(f.found) - 1; i >= 0; i-- {
		if dir := f.found[i].dir; dir != "" && !within(name, dir) {
			continue
		}
		if decided, out := f.found[i].rules.Decide(name, isDir); decided {
			return out
		}
	}
	return false
}
