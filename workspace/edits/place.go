package edits

import (
	"os"
	"path/filepath"
)

// Place is where in a folder a person stands, as a path from the folder: paths of files are read
// and shown from there. It is empty outside of the folder.
type Place string

// PlaceIn returns where in a folder the folder here is.
func PlaceIn(folder, here string) Place {
	for _, real := range []bool{false, true} {
		if real { // the way to one of them leads over a link
			var errs [2]error
			folder, errs[0] = filepath.EvalSymlinks(folder)
			here, errs[1] = filepath.EvalSymlinks(here)
			if errs[0] != nil || errs[1] != nil {
				return ""
			}
		}
		if p, err := filepath.Rel(folder, here); err == nil && filepath.IsLocal(p) {
			return Place(p)
		}
	}
	return ""
}

// Name returns a path of the folder as it is called from the place.
func (p Place) Name(path string) string {
	name, err := filepath.Rel(string(p), path)
	if p == "" || err != nil {
		return path
	}
	return name
}

// PathsIn returns the paths in a folder of files that are called so where a person stands. An
// absolute path outside of the folder stays as it is.
func PathsIn(folder, here string, names []string) []string {
	place := PlaceIn(folder, here)
	paths := make([]string, len(names))
	for i, name := range names {
		switch paths[i] = name; {
		case filepath.IsAbs(name):
			paths[i] = pathBelow(folder, name)
		case place != "":
			paths[i] = filepath.Join(string(place), name)
		}
	}
	return paths
}

// pathBelow returns the path in a folder of an absolute path, which may lead to the folder over a
// link. The file need not exist.
func pathBelow(folder, name string) string {
	if p, err := filepath.Rel(folder, name); err == nil && filepath.IsLocal(p) {
		return p
	}
	root, err := os.Stat(folder)
	if err != nil {
		return name
	}
	name = filepath.Clean(name)
	// The first one is the folder: below it, links are its content.
	for at := range name {
		if at == 0 || name[at] != '/' {
			continue
		}
		if st, err := os.Stat(name[:at]); err == nil && os.SameFile(root, st) {
			return name[at+1:]
		}
	}
	if st, err := os.Stat(name); err == nil && os.SameFile(root, st) {
		return "."
	}
	return name
}
