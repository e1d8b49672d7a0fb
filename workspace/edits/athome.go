package edits

import "path/filepath"

// notOn returns the files of changes that the folder has as they are there, and that the branch has not,
// nor gets by decisions. Files outside of git are not among them.
func (b *branch) notOn(changes []Change, decisions []decision) ([]string, error) {
	if b.parent == "" {
		return nil, nil
	}
	decided := make(map[string]bool)
	for _, d := range decisions {
		decided[d.Path] = true
	}
	dir, objects := filepath.Join(b.own.dir, "home"), make(map[string]string)
	var there []Change
	for _, c := range changes {
		ours, err := b.state(c.Path)
		if ignoreBlocked(err) != nil {
			return nil, err
		}
		if decided[c.Path] || err == nil && Same(ours, c.After) {
			continue
		}
		home, err := Describe(filepath.Join(b.top, b.prefix), c.Path)
		if err != nil || !Same(home, c.After) {
			continue // the folder has gone on, or cannot be read
		}
		there = append(there, c)
		if e := b.entries[c.Path]; ours == nil || home == nil || home.Link || e.mode != home.Mode() {
			continue
		}
		placed, err := b.place(nil, filepath.Join(dir, b.prefix), c.Path, home)
		if err != nil {
			return nil, err
		}
		if placed {
			objects[b.prefix+c.Path] = b.entries[c.Path].object
		}
	}
	inside, _, err := b.outside(there)
	if err != nil {
		return nil, err
	}
	same, err := b.storedAs(dir, b.parent, objects)
	if status(err) > 0 {
		err = nil // too many filters fail: then more are named
	}
	var names []string
	for _, c := range inside {
		if !same[b.prefix+c.Path] {
			names = append(names, c.Path)
		}
	}
	return names, err
}
