package edits

import (
	"path"

	"golang.org/x/sys/unix"
)

// plan decides about all changes. A file that is in the way of an added one is no conflict if
// it is removed too.
func (m *merger) plan(changes []Change) ([]decision, error) {
	var all []decision
	for _, c := range changes {
		some, err := m.decide(c)
		if err != nil {
			return nil, err
		}
		for i := range some {
			if some[i].Target, err = some[i].linkTarget(); err != nil {
				return nil, err
			}
		}
		all = append(all, some...)
	}
	for {
		again, err := m.makeRoom(all)
		if err != nil {
			return nil, err
		}
		rest := withoutHalves(all)
		if len(rest) == len(all) && !again {
			return all, nil
		}
		all = rest
	}
}

// makeRoom decides again about what was blocked, by the files that are removed. It reports
// whether that changed anything.
func (m *merger) makeRoom(all []decision) (again bool, err error) {
	removed := make(map[string]bool)
	for _, d := range all {
		if d.Kind == Removed {
			removed[d.Path] = true
		}
	}
	for i := range all {
		d := &all[i]
		if !d.blocked {
			continue
		}
		free, err := m.ours.freed(d.Path, removed)
		if err != nil {
			return false, err
		}
		kind := Refused
		switch {
		case free && d.content != nil:
			kind = Merged
		case free:
			kind = Written
		}
		again = again || kind != d.Kind
		d.Kind = kind
	}
	return again, nil
}

// withoutHalves keeps a renamed file where it was if it cannot be put where it goes.
func withoutHalves(all []decision) []decision {
	stay := make(map[string]bool)
	for _, d := range all {
		if d.From != "" && d.Kind == Refused {
			stay[d.From] = true
		}
	}
	var out []decision
	for _, d := range all {
		if d.Kind != Removed || !stay[d.Path] {
			out = append(out, d)
		}
	}
	return out
}

// freed reports whether removing files makes room for a path.
func (f *folder) freed(name string, removed map[string]bool) (bool, error) {
	for _, dir := range above(name) {
		if removed[dir] {
			return true, nil
		}
	}
	fd, err := f.at(name)
	if err != nil {
		return false, nil // no folder: something that stays is in the way
	}
	_ = unix.Close(fd)
	const most = 10_000
	files, err := f.filesIn(name, most)
	if err != nil || len(files) >= most {
		return false, err
	}
	for _, one := range files {
		if !removed[one] {
			return false, nil
		}
	}
	return true, nil
}

// above lists the folders of a path, innermost first.
func above(name string) []string {
	var all []string
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		all = append(all, dir)
	}
	return all
}
