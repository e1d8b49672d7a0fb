package edits

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
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
// with an earlier conflict that is not resolved, and why.
func Part(base map[string]*File, sandbox []Change, folder map[string]*File, open map[string]string) Sides {
	out := Sides{Clashes: make(map[string]string)}
	maps.Copy(out.Clashes, open)
	both := make(map[string]bool)
	for _, c := range sandbox {
		both[c.Path] = true
		mine, changed := folder[c.Path]
		if !changed {
			mine = c.Before
		}
		if open[c.Path] != "" {
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
		if !both[name] && open[name] == "" {
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

// Push is a file that a client writes to a sandbox.
type Push struct {
	// Before is what the sandbox has to have, and Versions what the file may be since:
	// nil is none.
	Before   *File
	Versions []*File
	// Temp is the name that the file gets beside its place while it is replaced or removed.
	Temp string
}

// Pushes are the files that a client is about to write to a sandbox, or has written since the
// base advanced. They are on disk before the first is written: a client or daemon that is
// killed meanwhile cannot say what became of them. One process at a time changes them.
type Pushes struct {
	file  string
	files map[string]Push
}

// LoadPushes reads the pushes to a sandbox from a file; there are none if it does not exist.
func LoadPushes(file string) (*Pushes, error) {
	p := &Pushes{file: file, files: make(map[string]Push)}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &p.files)
	}
	return p, err
}

// Note remembers changes of a folder before they are written to a sandbox. temp makes names.
func (p *Pushes) Note(changes []Change, temp func() string) error {
	for _, c := range changes {
		one := p.files[c.Path]
		one.Before, one.Versions = c.Before, append(one.Versions, c.After)
		if c.After == nil || c.After.Link || c.Before != nil && c.Before.Link {
			one.Versions, one.Temp = append(one.Versions, nil), cmp.Or(one.Temp, temp())
		}
		p.files[c.Path] = one
	}
	return p.save()
}

// Temp is the name of a file beside its place.
func (p *Pushes) Temp(name string) string { return p.files[name].Temp }

// Forget ends pushes, because the base has advanced.
func (p *Pushes) Forget(files []AdvancedFile) error {
	for _, f := range files {
		delete(p.files, f.Path)
	}
	return p.save()
}

// Keep forgets pushes of files that the sandbox has as they were before.
func (p *Pushes) Keep(changes []Change) error {
	changed := make(map[string]bool)
	for _, c := range changes {
		changed[c.Path] = true
	}
	was := len(p.files)
	maps.DeleteFunc(p.files, func(name string, _ Push) bool { return !changed[name] })
	if len(p.files) == was {
		return nil
	}
	return p.save()
}

func (p *Pushes) save() error {
	if len(p.files) == 0 {
		err := os.Remove(p.file)
		_ = os.Remove(filepath.Dir(p.file)) // the last file removes the folder
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	raw, err := json.Marshal(p.files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.file), 0o700); err != nil {
		return err
	}
	return replaceFile(p.file, raw)
}

// replaceFile replaces a file by a rename, when its new content is on the disk.
func replaceFile(name string, content []byte) error {
	file, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(content); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// Left is a file that a push has moved away and not put back or removed.
type Left struct {
	// Path is where it belongs, and At where it is.
	Path, At string
	// Untouched is set if it is what the sandbox had to have.
	Untouched bool
}

// Sort takes the changes apart: those of the sandbox, those that pushes have made, and what
// pushes have moved away. What the sandbox has changed there is a change, too.
func (p *Pushes) Sort(changes []Change) (sandbox, landed []Change, left []Left) {
	temps := make(map[string]string)
	for name, one := range p.files {
		if one.Temp != "" {
			temps[path.Join(path.Dir(name), one.Temp)] = name
		}
	}
	for _, c := range changes {
		if name, ok := temps[c.Path]; ok {
			one := Left{name, c.Path, Same(c.After, p.files[name].Before)}
			left = append(left, one)
			if !one.Untouched && !p.made(name, c.After) {
				sandbox = append(sandbox, c)
			}
			continue
		}
		if p.made(c.Path, c.After) {
			landed = append(landed, c)
		} else {
			sandbox = append(sandbox, c)
		}
	}
	return sandbox, landed, left
}

// made reports whether a version of a file is one that was pushed.
func (p *Pushes) made(name string, f *File) bool {
	return slices.ContainsFunc(p.files[name].Versions, func(v *File) bool { return Same(v, f) })
}
