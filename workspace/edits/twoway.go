package edits

import (
	"maps"
	"slices"
)

// Direction says where a file goes that a folder and a sandbox keep in step.
type Direction int

// The directions.
const (
	// InStep: neither side has changed the file.
	InStep Direction = iota
	// Agreed: both sides have made the same change.
	Agreed
	ToFolder
	ToSandbox
	// Clash: the sides have made different changes. Both keep theirs.
	Clash
)

// Decide compares the versions of a file that both sides had and have. nil means that there
// is none.
func Decide(base, folder, sandbox *File) Direction {
	switch {
	case Same(folder, sandbox) && Same(folder, base):
		return InStep
	case Same(folder, sandbox):
		return Agreed
	case Same(folder, base):
		return ToFolder
	case Same(sandbox, base):
		return ToSandbox
	}
	return Clash
}

// Sides are the changes of both sides, by where they go.
type Sides struct {
	ToFolder, ToSandbox []Change
	// Clashes has why both sides keep their version of a file, as the end of a sentence.
	Clashes map[string]string
}

// Part decides about the changes of a sandbox and of a folder since a base. open are files
// with a conflict in the folder that is not resolved.
func Part(base map[string]*File, sandbox []Change, folder map[string]*File, open map[string]bool) Sides {
	out := Sides{Clashes: make(map[string]string)}
	for name := range open {
		out.Clashes[name] = "`agbox apply` has marked it in the folder, and it is not resolved"
	}
	both := make(map[string]bool)
	for _, c := range sandbox {
		both[c.Path] = true
		mine, changed := folder[c.Path]
		if !changed {
			mine = c.Before
		}
		if open[c.Path] {
			continue
		}
		switch Decide(c.Before, mine, c.After) {
		case ToFolder, Agreed:
			out.ToFolder = append(out.ToFolder, c)
		case Clash:
			out.Clashes[c.Path] = "both sides have changed it, and both keep theirs"
		}
	}
	var mine []Change
	for _, name := range slices.Sorted(maps.Keys(folder)) {
		mine = append(mine, Change{Path: name, Before: base[name], After: folder[name]})
		if !both[name] && !open[name] {
			out.ToSandbox = append(out.ToSandbox, mine[len(mine)-1])
		}
	}
	out.ToFolder, out.ToSandbox = out.whole(sandbox, out.ToFolder), out.whole(mine, out.ToSandbox)
	return out
}

// whole keeps a renamed file where it was on the other side, if it cannot come to where it is
// now. all are the changes of a side, and going those that go to the other side.
func (s *Sides) whole(all, going []Change) []Change {
	halves := make(map[string]bool)
	for _, c := range Renames(all) {
		if c.From != "" && s.Clashes[c.Path] != "" {
			halves[c.From] = true
		}
	}
	return slices.DeleteFunc(going, func(c Change) bool {
		if halves[c.Path] {
			s.Clashes[c.Path] = "it was renamed on one side, and the new path is in conflict"
		}
		return halves[c.Path]
	})
}

// Ours reports whether a path of a folder belongs to agbox or to git, and so is no work.
func Ours(name string) bool { return !usable(name) && name != "." }
