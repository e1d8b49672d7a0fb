package edits

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Kind says what became of a change.
type Kind int

// The kinds.
const (
	// Already: the folder has the same change, maybe among others.
	Already Kind = iota
	// Written, Removed: the folder has the sandbox's version now.
	Written
	Removed
	// Merged: the changes of both sides are in the file.
	Merged
	// Marked: both changed the same lines. The file has both versions, between markers.
	Marked
	// Refused: the folder keeps its version.
	Refused
)

// Outcome is what became of a change.
type Outcome struct {
	Change
	Kind Kind
	// Why explains Refused: the end of a sentence.
	Why string
	// Target is that of the sandbox's version, if it is a symbolic link.
	Target string
	// InFolder is set for a conflict with a branch if the folder has the version before the
	// change, and the commit of its HEAD has not. Skipped is then set if its index tells git not
	// to look at the file there, as in a sparse checkout: git does not commit it.
	InFolder, Skipped bool
}

// Conflict reports whether a person must look at the file.
func (o Outcome) Conflict() bool { return o.Kind == Marked || o.Kind == Refused }

// sides finds our side of a merge: the folder, or a commit.
type sides interface {
	// state describes our version of a file; nil if there is none.
	state(name string) (*File, error)
	// read returns its content.
	read(name string) ([]byte, error)
	// freed reports whether removing files makes room for a path.
	freed(name string, removed map[string]bool) (bool, error)
}

// decision is an Outcome, and the new version of the file.
type decision struct {
	Outcome
	// old is our version before, new the one to come: nil removes the file. content has the
	// new content, if it is not that of After.
	old, new *File
	content  []byte
	// object has it instead if the repository of a branch has it.
	object string
	// to is where a file goes that is removed because it was renamed.
	to string
	// back is set for a file that gets its version of before a conflict.
	back bool
	// blocked is set if something is in the way of an added file. It may be that a removed
	// file makes room.
	blocked bool
	// open is set if an earlier conflict is open there.
	open bool
}

// merger decides about changes.
type merger struct {
	ctx  context.Context
	ours sides
	// dir is for temporary files, and label is what markers call the sandbox.
	dir, label string
	// open has the files of earlier conflicts, and why: nothing comes to them.
	open map[string]string
}

// decide merges a change with our side. A renamed file gives two decisions.
func (m *merger) decide(c Change) ([]decision, error) {
	if !usable(c.Path) || c.From != "" && !usable(c.From) {
		return []decision{{Outcome: Outcome{Change: c, Kind: Refused, Why: "its name is one that git or agbox uses"}}}, nil
	}
	for _, path := range []string{c.Path, c.From} {
		if why, is := m.open[path]; is {
			return []decision{{Outcome: Outcome{Change: c, Kind: Refused, Why: why}, open: true}}, nil
		}
	}
	if c.From != "" {
		return m.rename(c)
	}
	d := decision{Outcome: Outcome{Change: c}, new: c.After}
	var err error
	d.old, err = m.ours.state(c.Path)
	if blocked := new(errBlocked); errors.As(err, &blocked) {
		d.Kind, d.Why, d.blocked = Refused, blocked.why, c.After != nil
		return []decision{d}, nil
	}
	if err != nil {
		return nil, err
	}
	err = m.three(&d)
	return []decision{d}, err
}

// three decides about one path from its three versions.
func (m *merger) three(d *decision) error {
	base, theirs := d.Before, d.After
	switch {
	case Same(d.old, theirs), Same(base, theirs) && d.old != nil:
		d.Kind = Already
	case Same(d.old, base), d.old == nil && d.Retracked:
		d.Kind = Written
		if theirs == nil {
			d.Kind = Removed
		}
	case theirs == nil:
		d.Kind, d.Why = Refused, "the sandbox removed it, and the folder has changed it"
	case d.old == nil:
		d.Kind, d.Why = Refused, "the sandbox changed it, and the folder has removed it"
	case d.old.Link || theirs.Link || base != nil && base.Link:
		d.Kind, d.Why = Refused, "both have changed it, and it is a symbolic link"
	default:
		return m.contents(d)
	}
	return nil
}

// contents merges regular files that differ.
func (m *merger) contents(d *decision) error {
	merged := *d.After
	if d.Before != nil && d.After.Executable == d.Before.Executable {
		merged.Executable = d.old.Executable
	}
	if d.Before == nil && d.old.Executable != d.After.Executable {
		d.Kind, d.Why = Refused, "both have added it, with different modes"
		return nil
	}
	d.new, d.Kind = &merged, Merged
	if Same(d.old, &merged) || d.Before != nil && d.Before.Sum == d.After.Sum && d.old.Executable == merged.Executable {
		d.Kind = Already // with the mode of the other side
		return nil
	}
	if d.Before != nil && d.Before.Sum == d.old.Sum || d.old.Sum == d.After.Sum {
		return nil
	}
	ours, err := m.ours.read(d.Path)
	if err != nil {
		return err
	}
	if d.Before != nil && d.Before.Sum == d.After.Sum {
		d.content = ours
		merged.Sum, merged.Size = d.old.Sum, d.old.Size
		return nil
	}
	if d.Before != nil && d.Before.TooLarge {
		d.Kind, d.Why = Refused, "both have changed it, and it was too large to merge"
		return nil
	}
	base, err := read(d.BeforeFile(), d.Before)
	if err != nil {
		return err
	}
	theirs, err := read(d.AfterFile(), d.After)
	if err != nil {
		return err
	}
	if binary(base) || binary(ours) || binary(theirs) {
		d.Kind, d.Why = Refused, "both have changed it, and it is binary"
		return nil
	}
	mine := ours
	ours, base, theirs = alike(ours, base, theirs)
	text, conflicts, err := m.lines(ours, base, theirs)
	if err != nil {
		return err
	}
	switch {
	case conflicts:
		d.Kind = Marked
	case bytes.Equal(text, mine) && merged.Executable == d.old.Executable:
		d.Kind = Already
	}
	d.content = text
	merged.Sum, merged.Size = sha256.Sum256(text), int64(len(text))
	return nil
}

// alike gives three texts the ends of lines of the side that has changed all of them, as git does with
// core.autocrlf when it checks a file out: else each line would be changed on both sides.
func alike(ours, base, theirs []byte) (o, b, t []byte) {
	was, us, them := ends(base), ends(ours), ends(theirs)
	if was == "" || us == "" || them == "" || us == was && them == was {
		return ours, base, theirs
	}
	to := us
	if us == was {
		to = them
	}
	return withEnds(ours, to), withEnds(base, to), withEnds(theirs, to)
}

// ends returns how all lines of a text end; empty if there are none, or of both kinds.
func ends(text []byte) string {
	lines, both, returns := bytes.Count(text, []byte("\n")), bytes.Count(text, []byte("\r\n")), bytes.Count(text, []byte("\r"))
	switch {
	case lines == 0 || returns > both:
		return ""
	case both == lines:
		return "\r\n"
	case both == 0:
		return "\n"
	}
	return ""
}

func withEnds(text []byte, to string) []byte {
	return bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte(to))
}

// lines merges texts as git does.
func (m *merger) lines(ours, base, theirs []byte) (merged []byte, conflicts bool, err error) {
	args := []string{"merge-file", "-p", "-q", "-L", "folder", "-L", "base", "-L", m.label}
	for i, content := range [][]byte{ours, base, theirs} {
		name := filepath.Join(m.dir, []string{"ours", "base", "theirs"}[i])
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return nil, false, err
		}
		args = append(args, name)
	}
	var out bytes.Buffer
	g := &git{ctx: m.ctx, dir: m.dir, gitDir: filepath.Join(m.dir, "none")}
	err = g.pipe(nil, &out, args...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 && exit.ExitCode() < 128 {
		return out.Bytes(), true, nil // the number of conflicts
	}
	return out.Bytes(), false, err
}

// rename decides about a file that the sandbox has only renamed: what we changed in it moves
// with it.
func (m *merger) rename(c Change) ([]decision, error) {
	old, err := m.ours.state(c.From)
	if blocked := new(errBlocked); errors.As(err, &blocked) {
		return []decision{{Outcome: Outcome{Change: c, Kind: Refused, Why: "of " + c.From + ": " + blocked.why}}}, nil
	}
	if err != nil {
		return nil, err
	}
	there, err := m.ours.state(c.Path)
	blocked := new(errBlocked)
	if errors.As(err, &blocked) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	gone := c
	gone.Path, gone.From, gone.After = c.From, "", nil
	to := decision{Outcome: Outcome{Change: c, Kind: Written}, old: there, new: c.After}
	if blocked.why != "" {
		to.Kind, to.Why, to.blocked = Refused, blocked.why, true
	}
	from := decision{Outcome: Outcome{Change: gone, Kind: Removed}, old: old, to: c.Path}
	switch {
	case old == nil && Same(there, c.After):
		from.Kind, to.Kind = Already, Already
	case old == nil:
		to.Kind, to.Why, to.blocked = Refused, "the sandbox renamed "+c.From+" to it, and the folder has removed that", false
		return []decision{to}, nil
	case there != nil && !Same(there, c.After):
		to.Kind, to.Why = Refused, "the sandbox renamed "+c.From+" to it, and the folder has another file there"
		return []decision{to}, nil
	case there != nil:
		to.Kind = Already
		if !Same(old, c.Before) {
			to.Kind, to.Why = Refused, "the sandbox renamed "+c.From+" to it, and the folder has changed that"
			return []decision{to}, nil
		}
	case !Same(old, c.Before):
		if old.Link || c.After.Link {
			to.Kind, to.Why = Refused, "the sandbox renamed "+c.From+" to it, and the folder has changed that"
			return []decision{to}, nil
		}
		to.new = old
		if !to.blocked {
			to.Kind = Merged
		}
		to.content, err = m.ours.read(c.From)
		if to.content == nil {
			to.content = []byte{}
		}
	}
	return []decision{from, to}, err
}

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
