package edits

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// join finds in what the sandbox's commits differ from the commit below them and the branch.
func (b *branch) join(h *History) (err error) {
	below := h.Copied
	out, err := b.list("merge-base", b.tip, h.Tip)
	if err == nil {
		below = strings.TrimSpace(string(out))
	} else if status(err) != 1 {
		return err
	}
	b.second, b.had = h.Tip, make(map[string]map[treeEntry]bool)
	if b.joins, err = b.differing(below, h.Tip); err != nil {
		return err
	}
	if err := b.versions(below, slices.Sorted(maps.Keys(b.joins))); err != nil {
		return err
	}
	return b.takenBack(h, below)
}

// takenBack finds the files that the sandbox's commits have changed and taken back, of which the
// branch has got a version since, and never had the one before again.
func (b *branch) takenBack(h *History, below string) error {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(b.made)) {
		if _, joins := b.joins[name]; !joins && b.entries[name].object != "" {
			names = append(names, name)
		}
	}
	tips := make(map[string]treeEntry)
	for some := range slices.Chunk(names, 250) {
		out, err := b.list(append([]string{"--literal-pathspecs", "ls-tree", "-z", "--full-tree", h.Tip, "--"}, some...)...)
		if err != nil {
			return err
		}
		maps.Insert(tips, treeEntries(out))
	}
	names = slices.DeleteFunc(names, func(name string) bool { return tips[name] == b.entries[name] })
	if err := b.versions(below, names); err != nil {
		return err
	}
	b.older = slices.DeleteFunc(names, func(name string) bool { return b.had[name] == nil || b.had[name][tips[name]] })
	b.tips = tips
	return nil
}

// versions finds the versions that the branch has got of files since the commit below both sides, of a merge
// those that neither side has. What came from the sandbox and is otherwise now, the user has changed since.
// All other files of these commits are the user's, and may be any number. names are sorted.
func (b *branch) versions(below string, names []string) error {
	for some := range slices.Chunk(names, 250) {
		args := []string{"--literal-pathspecs", "log", "-c", "--full-history", "--format=", "--raw", "-r", "-z", "--no-renames", "--no-abbrev", b.tip, "^" + below, "--"}
		out, err := b.list(append(args, some...)...)
		if err != nil {
			return err
		}
		err = eachChange(out, func(name string, two twoEntries) error {
			if _, is := slices.BinarySearch(some, name); !is {
				return nil // below a path that is a file on the other side
			}
			if b.had[name] == nil {
				b.had[name] = make(map[treeEntry]bool)
			}
			b.had[name][two.tip] = true
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hadBefore returns the paths of changes that begin from a version that the branch had.
func (b *branch) hadBefore(changes []*Change) (map[string]bool, error) {
	had := make(map[string]bool)
	for _, c := range changes {
		if c.Before == nil || c.From != "" || len(b.had[c.Path]) == 0 {
			continue
		}
		object, err := b.blobName(c.BeforeFile())
		if err != nil {
			return nil, err
		}
		had[c.Path] = b.hasHad(c.Path, treeEntry{c.Before.Mode(), object})
	}
	return had, nil
}

// hasHad reports whether the branch had a version of a file. If the sandbox's commits have not changed
// its mode, the branch had it with the mode that the user has given the file there.
func (b *branch) hasHad(name string, e treeEntry) bool {
	had := b.had[name]
	if e.mode != "120000" && e.mode == b.joins[name].was.mode {
		return had[treeEntry{"100644", e.object}] || had[treeEntry{"100755", e.object}]
	}
	return had[e]
}

// joining changes the bases of the sandbox's changes to what the commit below both sides has, as
// git merges, and adds what only the commits show: the sandbox may have committed what was not
// committed when it was copied in.
func (b *branch) joining(h *History, changes []Change) ([]Change, error) {
	copied, err := b.differing(h.Copied, h.Tip)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.own.dir, "converted")
	out := slices.Clone(changes)
	known := make(map[string]bool)
	var others []*Change // from another version than the branch has
	for i := range out {
		c := &out[i]
		two, differs := b.joins[c.Path]
		known[c.Path] = true
		ours, err := b.state(c.Path)
		if err != nil && ignoreBlocked(err) != nil {
			return nil, err
		}
		if differs && two.was.mode != "160000" && (err != nil || !Same(ours, c.Before)) {
			others = append(others, c)
		}
	}
	had, err := b.hadBefore(others)
	if err != nil {
		return nil, err
	}
	for _, c := range others {
		if !had[c.Path] {
			if c.Before, err = b.stage(dir, b.joins[c.Path].was); err != nil {
				return nil, err
			}
		}
	}
	if err := b.storedAnew(h, known, b.joins, copied); err != nil {
		return nil, err
	}
	committed, err := b.committed(h, dir, known, copied)
	if err != nil {
		return nil, err
	}
	if err := b.keepsOlder(h, known); err != nil {
		return nil, err
	}
	var raw []Change // by a git inside that did not convert them
	for _, c := range committed {
		if Same(c.After, h.Base[c.Path]) {
			raw = append(raw, c)
		} else {
			out = append(out, c)
		}
	}
	converted := slices.Clone(raw)
	if err := b.convertSide("committed", after, raw, converted); err != nil {
		return nil, err
	}
	out = append(out, converted...)
	Sort(out)
	return out, nil
}

// committed returns the changes of files that only the commits show and the branch does not have.
// known are the others, and copied those in which the commits differ from what was copied in.
func (b *branch) committed(h *History, dir string, known map[string]bool, copied map[string]twoEntries) (changes []Change, err error) {
	ours, said, err := b.onlyCommitted(h, known, copied)
	if err != nil {
		return nil, err
	}
	back, err := b.turnedBack(h, said, nil)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		to := b.joins[name].tip
		if d := back[name]; d != nil && d.new != nil {
			to = treeEntry{d.new.Mode(), d.object}
		} else if d != nil {
			to = treeEntry{}
		}
		c, err := b.brings(h, dir, name, to, ours[name])
		if err != nil {
			return nil, err
		}
		if c != nil {
			changes = append(changes, *c)
		}
	}
	return changes, nil
}

// onlyCommitted finds the files that only the commits show, but for those of which the branch has
// what is in the workspace, whatever is committed there. ours is what the branch has of them. said
// are those of which the workspace says something.
func (b *branch) onlyCommitted(h *History, known map[string]bool, copied map[string]twoEntries) (ours map[string]*File, said map[string]twoEntries, err error) {
	ours, said = make(map[string]*File), make(map[string]twoEntries)
	var asked []checkout
	for name, two := range b.joins {
		if known[name] {
			continue
		}
		file, err := b.state(name)
		if err != nil && ignoreBlocked(err) != nil {
			return nil, nil, err
		}
		own, differs := copied[name]
		last, apart := h.Base[name], b.apart(h, name, own) || !differs && h.neverHad(name)
		if err == nil && (!apart || b.stopped[name]) && !b.anew[name] {
			if Same(file, last) && !apart && two.tip.mode != "160000" { // the workspace has no file in its place
				continue
			}
			if file != nil && last != nil {
				asked = append(asked, checkout{name, b.entries[name], last})
			}
		}
		if ours[name] = file; !apart {
			said[name] = twoEntries{own.was, two.tip}
		}
	}
	same, err := b.holds(h, asked)
	b.came = make(map[string]bool)
	maps.DeleteFunc(same, func(name string, is bool) bool {
		b.came[name] = is && b.stopped[name]
		return b.stopped[name]
	})
	maps.DeleteFunc(ours, func(name string, _ *File) bool { return same[name] })
	maps.DeleteFunc(said, func(name string, _ twoEntries) bool { return same[name] })
	return ours, said, err
}

// holds returns the names of the files that are what git writes of their entries, or that it stores as
// these, such as one with ends of lines of both kinds.
func (b *branch) holds(h *History, asked []checkout) (map[string]bool, error) {
	same, _, err := b.checksOut(asked)
	if err != nil {
		return nil, err
	}
	dir, objects := filepath.Join(b.own.dir, "held"), make(map[string]string)
	for _, c := range asked {
		if same[c.name] || c.file.Link || c.entry.mode != c.file.Mode() || c.attributes() {
			continue // attributes of the workspace would choose filters
		}
		placed, err := b.place(h, filepath.Join(dir, b.prefix), c.name, c.file)
		if err != nil {
			return nil, err
		}
		if placed {
			objects[b.prefix+c.name] = c.entry.object
		}
	}
	stored, err := b.storedAs(dir, b.parent, objects)
	if status(err) > 0 {
		err = nil // too many filters fail: then more are conflicts
	}
	for name, is := range stored {
		same[strings.TrimPrefix(name, b.prefix)] = is
	}
	return same, err
}

// brings returns the change of a file to what commits have; nil if the branch has it, or had it
// and has another version since.
func (b *branch) brings(h *History, dir, name string, to treeEntry, now *File) (*Change, error) {
	was := b.joins[name].was
	ours := b.entries[name]
	if to == was || to == ours || b.noModes && was.object == "" && to.object == ours.object && to.mode != "120000" && ours.mode != "120000" {
		return nil, nil
	}
	if ours.object == "" && h.Brought[name] && len(b.had[name]) > 0 {
		return nil, nil // the user has removed it since, or renamed it
	}
	loses := to.object == "" && b.came[name] && !b.lost[name]
	if b.hasHad(name, to) && !loses {
		if Same(h.Base[name], h.Copy[name]) {
			return nil, nil
		}
		return nil, b.keepsOther(h, name, now, "the branch had this version and has another one since, which may be an older one of the sandbox")
	}
	if was.mode == "160000" || to.mode == "160000" {
		return nil, &HistoryError{fmt.Errorf("%q is a submodule that they change, and the branch has other commits", name)}
	}
	before, err := b.stage(dir, was)
	if err != nil {
		return nil, err
	}
	after, err := b.stage(dir, to)
	if err != nil {
		return nil, err
	}
	if after == nil && b.came[name] {
		before = now
	}
	c := NewChange(dir, name, before, after)
	return &c, nil
}

// keepsOlder asks about files that the sandbox has taken back in the workspace too. known are those
// of which there is a change.
func (b *branch) keepsOlder(h *History, known map[string]bool) error {
	ours := make(map[string]*File)
	var asked []checkout
	for _, name := range b.older {
		file, err := b.state(name)
		if err != nil && ignoreBlocked(err) != nil {
			return err
		}
		last, committed := h.Base[name], b.made[name][b.entries[name]]
		gone := b.gone(name) && (committed || !Same(last, h.Copy[name])) // else it is the user's
		if err == nil && gone && (committed || Same(file, last)) {       // one of its versions, which --squash has brought
			b.lose(name, file)
			continue
		}
		if err != nil || known[name] || h.Apart[name] || Same(file, last) || !gone && !committed {
			continue
		}
		if ours[name] = file; file != nil && last != nil {
			asked = append(asked, checkout{name, b.entries[name], last})
		}
	}
	same, err := b.holds(h, asked)
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		switch {
		case err != nil:
		case same[name] && b.gone(name):
			b.lose(name, ours[name])
		case !same[name] && b.made[name][b.entries[name]]:
			err = b.keepsOther(h, name, ours[name], "the branch has an older version of the sandbox, which has taken it back")
		}
	}
	return err
}

// gone reports whether git has stopped tracking a file in the sandbox, and the last commit has it no more.
func (b *branch) gone(name string) bool { return b.stopped[name] && b.tips[name].object == "" }

// lose decides that the branch loses a file.
func (b *branch) lose(name string, file *File) {
	b.unsure = append(b.unsure, decision{Outcome: Outcome{Change: Change{Path: name, Before: file}, Kind: Removed}, old: file})
}

// keepsOther leaves a file on the branch as it is there: what the workspace has now was there, and
// the other one is the user's. If the version of the workspace came to the folder since, it may be
// that the other one is an older one of the sandbox.
func (b *branch) keepsOther(h *History, name string, ours *File, why string) error {
	last := h.Base[name]
	if h.Home == nil {
		return nil
	}
	if home, err := b.atHome(h, name); err != nil {
		return err
	} else if Same(last, home) {
		b.unsure = append(b.unsure, decision{Outcome: Outcome{Change: Change{Path: name, Before: ours, After: last}, Kind: Refused, Why: why}, old: ours})
	}
	return nil
}

// atHome is the version of a file that was copied or has come to the folder.
func (b *branch) atHome(h *History, name string) (f *File, err error) {
	if h.Home == nil {
		return h.Copy[name], nil
	}
	if b.home == nil {
		b.home, err = h.Home()
	}
	return b.home[name], err
}

// stage stores the content of an entry where changes have theirs.
func (b *branch) stage(dir string, e treeEntry) (*File, error) {
	if e.object == "" {
		return nil, nil
	}
	content, err := b.objects.content(e.object, maxRead)
	if err != nil {
		return nil, err
	}
	f := versionOf(&File{Link: e.mode == "120000", Executable: e.mode == "100755"}, content)
	return f, os.WriteFile(ContentFile(dir, f), content, 0o600)
}

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
