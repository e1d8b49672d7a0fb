package hostfiles

import (
	"path"
	"path/filepath"
	"strings"
)

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
