package hostfiles

import (
	"path/filepath"
	"strings"
)

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
