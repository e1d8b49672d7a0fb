package build

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
)

// ignoring excludes from a build context what its .dockerignore names, but not the
// Dockerfile.
type ignoring struct {
	dockerfile, root string

	patterns *patternmatcher.PatternMatcher
	count    int
	// left is what is left of maxMatched.
	left int
}

// Enter reads the .dockerignore of the context: that of the Dockerfile, else the general
// one. Only those at the top are read.
func (i *ignoring) Enter(name string, dir int) error {
	if name != "" {
		return nil
	}
	i.left = maxMatched
	for _, file := range []string{i.dockerfile + ".dockerignore", ".dockerignore"} {
		lines, err := readIgnore(dir, file)
		if err == nil && len(lines) > maxPatterns {
			err = fmt.Errorf("it has more than %d patterns", maxPatterns)
		}
		if err == nil && lines != nil {
			i.count = len(lines)
			i.patterns, err = patternmatcher.New(lines)
		}
		if err != nil {
			return refused("%s cannot be used (%v): mend it.", path.Join(i.root, file), err)
		}
		if i.patterns != nil {
			return nil
		}
	}
	return nil
}

// readIgnore returns the patterns of a file in an open folder, nil if there is none. A
// symbolic link, or a file behind one, counts as none.
func readIgnore(dir int, name string) ([]string, error) {
	text, err := filesystem.ReadWithinAt(dir, name, maxIgnore)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, filesystem.ErrLink), errors.Is(err, filesystem.ErrIrregular):
		return nil, nil
	case err != nil:
		return nil, err
	}
	lines, err := ignorefile.ReadAll(bytes.NewReader(text))
	if lines == nil {
		lines = []string{}
	}
	return lines, err
}

// Skip reports whether a path is excluded.
func (i *ignoring) Skip(name string, isDir bool) (bool, error) {
	switch {
	case name == inlineName:
		return true, nil
	case i.patterns == nil, name == i.dockerfile, isDir && strings.HasPrefix(i.dockerfile, name+"/"):
		return false, nil
	}
	// Each part of a path is compared: an excluded folder excludes what is below it.
	if i.left -= i.count * (1 + strings.Count(name, "/")); i.left < 0 {
		return false, refused("The .dockerignore of %s has too many patterns for so many files: use fewer, or exclude whole folders.", i.root)
	}
	out, err := i.patterns.MatchesOrParentMatches(name)
	if err != nil {
		return false, refused("The .dockerignore of %s cannot be used (%v): mend it.", i.root, err)
	}
	return out && !(isDir && i.patterns.Exclusions()), nil
}
