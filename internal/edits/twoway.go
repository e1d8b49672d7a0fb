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
	for _, name := range slices.Sorted(maps.Keys(folder)) {
		if !both[name] && !open[name] {
			out.ToSandbox = append(out.ToSandbox, Change{Path: name, Before: base[name], After: folder[name]})
		}
	}
	return out
}

// Ours reports whether a path of a folder belongs to agbox or to git, and so is no work.
func Ours(name string) bool { return !usable(name) && name != "." }
