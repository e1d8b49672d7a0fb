package edits

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/agbox/agbox/internal/paths"
)

// pending is a conflict that was brought to a folder as markers. Until it is resolved the
// base of the sandbox does not advance, so the change counts as not brought.
type pending struct {
	Path []byte
	// Label is the name of the sandbox in the markers.
	Label string
	// Base, Ours and Theirs are the versions that were merged, and Marked is the result.
	Base, Ours, Theirs, Marked *File
	OursContent, TheirsContent []byte
	// file is where it is remembered.
	file     string
	standing standing
}

// pendingPrefix begins the name of the file of each conflict of a sandbox.
const pendingPrefix = "pending-"

// pendingName begins the name of the file of each conflict of a sandbox in a folder. keep is
// what agbox keeps about the folder.
func pendingName(keep string) string { return pendingPrefix + filepath.Base(keep) + "-" }

// Pending returns the names of the files that remember conflicts of a sandbox in any folder. Some may
// be resolved there since the last call that looked. records is what agbox keeps about the sandbox.
func Pending(records string) (names []string, err error) {
	entries, err := os.ReadDir(records)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), pendingPrefix) && !strings.HasSuffix(e.Name(), ".new") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func shortSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// remember makes a conflict pending. records is what agbox keeps about the sandbox.
func (p pending) remember(records, keep string) error {
	raw, err := json.Marshal(p)
	if err == nil {
		err = os.MkdirAll(records, 0o700)
	}
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(records, pendingName(keep)+shortSum(string(p.Path))), raw)
}

// pending returns the conflicts of a sandbox that are pending.
func (f *folder) pending(o ApplyOptions) ([]pending, error) {
	keep, err := f.keep(o.Data)
	if err != nil {
		return nil, err
	}
	dir := paths.RecordsIn(o.Data, o.Sandbox)
	names, err := Pending(dir)
	var all []pending
	for _, name := range names {
		if !strings.HasPrefix(name, pendingName(keep)) {
			continue
		}
		p := pending{file: filepath.Join(dir, name)}
		raw, err := os.ReadFile(p.file)
		if err == nil {
			err = json.Unmarshal(raw, &p)
		}
		if err != nil {
			return nil, fmt.Errorf("an earlier conflict in %s cannot be read: %w", f.path, err)
		}
		all = append(all, p)
	}
	return all, err
}

// standing is what a folder has of a pending conflict.
type standing int

const (
	// marked: the file has markers, or cannot be read now.
	marked standing = iota
	// blocked: something else is in its place, which says nothing about the file.
	blocked
	// taken: no markers, and the sandbox's version or something of it.
	taken
	// own: again what it was before the conflict.
	own
	// atBase: what it was when it was copied.
	atBase
	// bare: something else, with nothing of the sandbox's version.
	bare
)

// without reports whether the folder has nothing of the sandbox's version.
func (s standing) without() bool { return s >= own }

// settle looks what became of the conflicts of a sandbox. Those that the user resolved, or says to have,
// advance the base, unless the sandbox has taken its change back. open are the others that stay, also all
// that the call is not about. The rest is forgotten: nothing comes of it, or it comes again by this call.
// work is all that the sandbox has changed; nil is unknown.
func (f *folder) settle(o ApplyOptions, work []Change) (resolved []string, open map[string]pending, err error) {
	all, err := f.pending(o)
	if err != nil {
		return nil, nil, err
	}
	open = make(map[string]pending)
	theirs := make(map[string]*File)
	for _, c := range work {
		if theirs[c.Path] = c.After; c.From != "" {
			theirs[c.From] = nil
		}
	}
	var done []pending
	var files []AdvancedFile
	for _, p := range all {
		path := string(p.Path)
		var now *File
		if p.standing, now, err = f.standing(p); err != nil {
			return nil, nil, err
		}
		if len(Select([]Change{{Path: path}}, o.Paths)) == 0 || p.standing == marked || p.standing == blocked && !o.Continue {
			open[path] = p
			continue
		}
		has, changed := theirs[path]
		back := work != nil && !changed // the sandbox has taken its change back
		if back && o.Hidden != nil {
			hidden, err := o.Hidden(path)
			if err != nil {
				return nil, nil, err
			}
			back = !hidden
		}
		comes := changed && !o.Exact && !o.NoMerge && !o.Without[path]
		switch {
		case p.standing == taken || o.Continue:
			done, resolved = append(done, p), append(resolved, path)
			if !back {
				files = append(files, AdvancedFile{Path: path, File: p.Theirs, Content: func() ([]byte, error) { return p.TheirsContent, nil }})
			}
		case back || p.standing == atBase || p.standing == own && comes || changed && Same(now, has):
			done = append(done, p)
		default:
			open[path] = p
		}
	}
	if o.Check {
		return resolved, open, nil
	}
	if len(files) > 0 && o.Advance != nil {
		o.hook("advance the base to what was resolved")
		if err := o.Advance(o.Sandbox, files); err != nil {
			return nil, nil, err
		}
	}
	return resolved, open, o.forget(done)
}

// forget ends conflicts.
func (o ApplyOptions) forget(all []pending) error {
	for _, p := range all {
		o.hook("forget the conflict in " + string(p.Path))
		if err := os.Remove(p.file); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(p.file)) // the last one removes the folder
	}
	return nil
}

// shown has the conflicts without markers that earlier calls have shown. Continue is about these only:
// of another version of the sandbox nobody knows yet.
type shown struct {
	file string
	// changes are by the sum of the path.
	changes map[string]shownChange
}

// shownChange is what the sandbox had done then. From is empty unless it has renamed the file.
type shownChange struct {
	From          []byte
	Before, After *File
}

func (s shownChange) equal(other shownChange) bool {
	same := func(a, b *File) bool { return a == b || a != nil && b != nil && *a == *b } // also if the content was not read
	return string(s.From) == string(other.From) && same(s.Before, other.Before) && same(s.After, other.After)
}

// shownPrefix begins the name of the file of these conflicts in a folder.
const shownPrefix = "shown-"

func (f *folder) shown(o ApplyOptions) (*shown, error) {
	keep, err := f.keep(o.Data)
	if err != nil {
		return nil, err
	}
	s := &shown{file: filepath.Join(paths.RecordsIn(o.Data, o.Sandbox), shownPrefix+filepath.Base(keep))}
	raw, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if json.Unmarshal(raw, &s.changes) != nil {
		s.changes = nil // they are shown once more
	}
	return s, err
}

func (s *shown) has(c Change) bool {
	known, ok := s.changes[shortSum(c.Path)]
	return ok && known.equal(shownChange{[]byte(c.From), c.Before, c.After})
}

// replace notes the conflicts that this call shows, for the files that it has looked at.
func (s *shown) replace(o ApplyOptions, all []decision) error {
	now := make(map[string]shownChange)
	maps.Copy(now, s.changes)
	for _, d := range all {
		sum := shortSum(d.Path)
		delete(now, sum)
		if d.Kind == Refused && !d.open {
			now[sum] = shownChange{[]byte(d.From), d.Before, d.After}
		}
	}
	if maps.EqualFunc(now, s.changes, shownChange.equal) {
		return nil
	}
	o.hook("note which conflicts are shown")
	dir := filepath.Dir(s.file)
	if len(now) == 0 {
		defer func() { _ = os.Remove(dir) }() // unless it has others
		if err := os.Remove(s.file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil // the sandbox was removed
	}
	raw, err := json.Marshal(now)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	return replaceFile(s.file, raw)
}

// standing looks at the file of a conflict.
func (f *folder) standing(p pending) (at standing, now *File, err error) {
	now, err = f.state(string(p.Path))
	switch {
	case errors.As(err, new(*errBlocked)):
		return blocked, now, nil
	case err != nil:
		return marked, now, err
	case Same(now, p.Theirs):
		return taken, now, nil
	case Same(now, p.Marked):
		return marked, now, nil
	case Same(now, p.Ours):
		return own, now, nil
	case Same(now, p.Base):
		return atBase, now, nil
	case now == nil || now.Link:
		return bare, now, nil
	}
	text, err := f.read(string(p.Path))
	if err != nil {
		return marked, now, nil //nolint:nilerr // the next call looks again
	}
	lines, ours, theirs := lineSet(text), lineSet(p.OursContent), lineSet(p.TheirsContent)
	for _, marker := range []string{"<<<<<<< folder", ">>>>>>> " + p.Label} {
		if lines[marker] && !ours[marker] && !theirs[marker] {
			return marked, now, nil
		}
	}
	for line := range theirs {
		if lines[line] && !ours[line] && strings.TrimSpace(line) != "" {
			return taken, now, nil
		}
	}
	return bare, now, nil
}

// lineSet returns the lines of a text.
func lineSet(text []byte) map[string]bool {
	all := make(map[string]bool)
	for line := range bytes.Lines(text) {
		all[string(bytes.TrimRight(line, "\r\n"))] = true
	}
	return all
}

// unresolved is the end of a sentence about an open conflict.
func (p pending) unresolved() string {
	switch {
	case p.standing.without():
		return "an earlier one; the folder has nothing of the sandbox's version: --continue keeps that, --again merges anew"
	case p.standing == blocked:
		return "an earlier one, and something else is in the place of its file: move that away first, or --continue ends the conflict, and leaves its markers"
	case p.standing == taken:
		return "an earlier one: `agbox apply` without a PATH finds that it is resolved"
	}
	return "an earlier one that is not resolved; see the markers"
}
