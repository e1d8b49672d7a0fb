package client

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/workspace/covers"
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
	changes []WorkChange
}

// Agree decides whether a folder of this machine gets such files. If not, they are left out,
// and the rest comes.
type Agree func(ctx context.Context, folder string, found []Executable) (bool, error)

// consent remembers what Agree has decided.
type consent struct {
	agree Agree
	known map[answered]bool
}

// answered is a version of a file that was asked about. after is empty if it is removed.
type answered struct {
	path, from string
	after      edits.File
	removed    bool
}

func answerFor(c WorkChange) answered {
	a := answered{path: c.Path, from: c.From, removed: c.After == nil}
	if c.After != nil {
		a.after = *c.After
	}
	return a
}

// decide separates what comes to a folder from what is left out.
func (c *consent) decide(ctx context.Context, folder string, changes []WorkChange) (come []WorkChange, left []Executable, err error) {
	found := executables(folder, changes)
	if c.agree == nil || len(found) == 0 {
		return changes, nil, nil
	}
	if c.known == nil {
		c.known = make(map[answered]bool)
	}
	var open []Executable
	for _, one := range found {
		if slices.ContainsFunc(one.changes, func(w WorkChange) bool { _, ok := c.known[answerFor(w)]; return !ok }) {
			open = append(open, one)
		}
	}
	if len(open) > 0 {
		yes, err := c.agree(ctx, folder, open)
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
		if slices.ContainsFunc(one.changes, func(w WorkChange) bool { return !c.known[answerFor(w)] }) {
			left = append(left, one)
			for _, w := range one.changes {
				out[w.Path] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(changes), func(w WorkChange) bool { return out[w.Path] }), left, nil
}

// without returns the paths of the changes that were left out; none for a check.
func without(left []Executable, check bool) map[string]bool {
	paths := make(map[string]bool)
	for _, one := range left {
		for _, w := range one.changes {
			paths[w.Path] = !check
		}
	}
	return paths
}

// executables returns what this machine would execute of some changes of a folder, sorted by
// path: repositories of git, and the files of package covers. What the folder has already is
// not among them.
func executables(folder string, changes []WorkChange) (all []Executable) {
	repositories := repositoriesOf(folder, changes)
	for _, w := range changes {
		dir, inGit := repositories.of(w)
		row, ok := covers.Find(filepath.Join(folder, w.Path))
		if !ok && w.From != "" {
			row, ok = covers.Find(filepath.Join(folder, w.From))
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
			all = append(all, Executable{Path: w.Path, Letter: letter, Who: row.Who, When: row.When, changes: []WorkChange{w}})
		} else if i := slices.IndexFunc(all, func(e Executable) bool { return e.Repository && e.Path == dir }); i >= 0 {
			all[i].changes = append(all[i].changes, w)
		} else {
			all = append(all, Executable{Path: dir, Letter: letter, Who: "git", When: repositoryWhen, Repository: true, changes: []WorkChange{w}})
		}
	}
	return all
}

// repositoryWhen is when git executes the settings of a repository.
const repositoryWhen = "takes it for a repository, and executes its settings at any command in it"

// has reports whether a folder has a change already.
func has(folder string, w WorkChange) bool {
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
func repositoriesOf(folder string, changes []WorkChange) repositories {
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
		all[dir] = covers.Repository(func(name string) bool {
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
			if part := covers.GitPart(at); part != "" && !yield(dir, part) {
				return
			}
			dir = filepath.Join(dir, at)
		}
	}
}

// of returns the outermost repository that a change is a part of.
func (r repositories) of(w WorkChange) (string, bool) {
	for _, name := range []string{w.Path, w.From} {
		for dir := range gitPartsOf(name) {
			if r[dir] {
				return dir, true
			}
		}
	}
	return "", false
}
