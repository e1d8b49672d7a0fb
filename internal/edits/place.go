package edits

import "path/filepath"

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

// Paths returns paths of the folder that are called so from the place.
func (p Place) Paths(names []string) []string {
	paths := make([]string, len(names))
	for i, name := range names {
		if paths[i] = name; p != "" && !filepath.IsAbs(name) {
			paths[i] = filepath.Join(string(p), name)
		}
	}
	return paths
}
