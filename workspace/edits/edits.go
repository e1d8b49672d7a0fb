// Package edits has what a sandbox changed in its workspace: its work. It finds renames,
// writes patches, merges the work into the folder that the workspace was copied from, and
// commits it on a branch.
//
// Everything about the work is hostile: names, contents, links. Git runs only with a
// repository, configuration and attributes that the sandbox could not write.
package edits

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// File is a version of a regular file or a symbolic link. The content of a link is its
// target.
type File struct {
	Link, Executable bool
	Size             int64
	Sum              [sha256.Size]byte
	// TooLarge is set if the content is not at hand, because it is too large: of a file of more
	// than MaxContent bytes, or one of many. Sum is zero if it was not read. Modified is when a
	// file of more than MaxContent was, in nanoseconds since 1970.
	TooLarge bool
	Modified int64
}

// Same reports whether two versions are equal. Both may be nil.
func Same(a, b *File) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Link == b.Link && a.Executable == b.Executable && a.Sum == b.Sum
}

// MaxContent is the maximum size of a file that is brought, in bytes, and MaxContents that of
// all contents of one comparison.
const (
	MaxContent  = 1 << 30
	MaxContents = 4 << 30
)

// Is reports whether the version has a content.
func (f *File) Is(content []byte) bool { return f.Sum == sha256.Sum256(content) }

// Mode returns the mode of a version as git writes it.
func (f *File) Mode() string {
	switch {
	case f.Link:
		return "120000"
	case f.Executable:
		return "100755"
	}
	return "100644"
}

// Change is a file that was added, changed or removed.
type Change struct {
	// Path is relative to the workspace.
	Path string
	// Before is nil if the file was added, After if it was removed.
	Before, After *File
	// From is the earlier path of a file that was renamed without any change. Before is then
	// what it was there.
	From string
	// Tracked is set if git tracks the file in the sandbox.
	Tracked bool
	// Retracked is set if a branch has lost the file, because git did not track it in the sandbox,
	// and git does now: a branch may have no file or that of Before, which may be equal to After.
	Retracked bool
	// Lines are those that changed, if they were asked for instead of the contents.
	Lines Lines
	// dir has the contents.
	dir string
}

// NewChange makes a change whose contents are in a folder.
func NewChange(dir, path string, before, after *File) Change {
	return Change{Path: path, Before: before, After: after, dir: dir}
}

// TooLarge reports whether a content of the change is not at hand.
func (c Change) TooLarge() bool {
	return c.Before != nil && c.Before.TooLarge || c.After != nil && c.After.TooLarge
}

// BeforeFile is the file with the content of Before.
func (c Change) BeforeFile() string { return ContentFile(c.dir, c.Before) }

// AfterFile is the file with the content of After.
func (c Change) AfterFile() string { return ContentFile(c.dir, c.After) }

// ContentFile is where a folder has the content of a version: equal contents are stored once.
// It is empty for no version.
func ContentFile(dir string, f *File) string {
	if f == nil {
		return ""
	}
	return filepath.Join(dir, hex.EncodeToString(f.Sum[:]))
}

// side is a side of changes: the path, the version and the file with its content.
type side func(c *Change) (name string, f *File, content string)

func before(c *Change) (string, *File, string) {
	if c.From != "" {
		return c.From, c.Before, c.BeforeFile()
	}
	return c.Path, c.Before, c.BeforeFile()
}

func after(c *Change) (string, *File, string) { return c.Path, c.After, c.AfterFile() }

// linkTarget returns the target of After if that is a symbolic link, else "".
func (c Change) linkTarget() (string, error) {
	if c.After == nil || !c.After.Link {
		return "", nil
	}
	to, err := os.ReadFile(c.AfterFile())
	return string(to), err
}

// read returns the content of a version; nil if there is no version.
func read(name string, f *File) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	return os.ReadFile(name)
}

// Sort sorts changes by path.
func Sort(all []Change) {
	slices.SortFunc(all, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
}

// Renames replaces a removed and an added file with the same content, type and mode by one
// renamed file. Empty files are not renamed. The result is sorted by path.
func Renames(all []Change) []Change {
	key := func(f *File) File { return File{Link: f.Link, Executable: f.Executable, Sum: f.Sum} }
	removed := make(map[File][]Change)
	for _, c := range all {
		if c.After == nil && c.Before.Size > 0 {
			removed[key(c.Before)] = append(removed[key(c.Before)], c)
		}
	}
	gone := make(map[string]bool)
	var out []Change
	for _, c := range all {
		if c.Before == nil && c.After.Size > 0 {
			if from := removed[key(c.After)]; len(from) > 0 {
				old := takeNearest(&from, c.Path)
				removed[key(c.After)] = from
				gone[old.Path] = true
				c.From, c.Before, c.Lines = old.Path, old.Before, Lines{Binary: c.Lines.Binary}
			}
		}
		out = append(out, c)
	}
	out = slices.DeleteFunc(out, func(c Change) bool { return c.After == nil && gone[c.Path] })
	Sort(out)
	return out
}

// halves are a removed and an added file instead of a renamed one.
func (c Change) halves() (gone, added Change) {
	return NewChange(c.dir, c.From, c.Before, nil), NewChange(c.dir, c.Path, nil, c.After)
}

// takeNearest removes and returns the change with the same name as a path, or else the first.
func takeNearest(from *[]Change, path string) Change {
	at := max(0, slices.IndexFunc(*from, func(c Change) bool { return filepath.Base(c.Path) == filepath.Base(path) }))
	one := (*from)[at]
	*from = slices.Delete(slices.Clone(*from), at, at+1)
	return one
}

// Select returns the changes at or below any of the paths; all if there are none.
func Select(all []Change, paths []string) []Change {
	if len(paths) == 0 {
		return all
	}
	within := func(name string) bool {
		return slices.ContainsFunc(paths, func(p string) bool {
			p = strings.Trim(filepath.Clean("/"+p), "/")
			return p == "" || name == p || strings.HasPrefix(name, p+"/")
		})
	}
	var out []Change
	for _, c := range all {
		if within(c.Path) || c.From != "" && within(c.From) {
			out = append(out, c)
		}
	}
	return out
}

// binary reports whether git takes a content for binary.
func binary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0
}

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

// ApplyOptions say how to bring work to a folder.
type ApplyOptions struct {
	// Folder of the host.
	Folder string
	// Data is the folder with agbox's own files about folders of the host (see stage.go).
	Data string
	// Sandbox is the id of the sandbox that the work is of, and Label its name in markers.
	Sandbox, Label string
	// Check decides, and changes nothing.
	Check bool
	// NoMerge changes nothing unless the folder still has all changed files as they were.
	NoMerge bool
	// Paths limit the work and the conflicts to these files and folders.
	Paths []string
	// Without are the paths of changes that are not brought.
	Without map[string]bool
	// Abort puts the files of earlier conflicts back as they were, if they still have the
	// markers, and brings nothing. Again brings those conflicts anew. Continue says that
	// conflicts without markers are resolved: what the folder has stays, and nothing is brought.
	Abort, Again, Continue bool
	// Hidden reports whether the sandbox has changed a file that is not among the changes, because it is
	// ignored or too large. Nil is never.
	Hidden func(path string) (bool, error)
	// Exact refuses changes of files that the folder has changed too, instead of merging.
	Exact bool
	// Advance makes files the base of a sandbox. It is called when they are in the folder.
	Advance func(sandbox string, files []AdvancedFile) error
	// hook is called before each change of the file system.
	hook func(what string)
}

// AdvancedFile is a file of a sandbox for its base.
type AdvancedFile struct {
	Path string
	// File is nil if the sandbox has removed it.
	File *File
	// Content returns the content, which may have changed since.
	Content func() ([]byte, error)
	// Had is set if it goes to a branch that had this version before.
	Had bool
}
