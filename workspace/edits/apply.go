package edits

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
)

// Applied is the result of Apply.
type Applied struct {
	// Outcomes are in the order of the changes. A renamed file has two.
	Outcomes []Outcome
	// Finished is set if an earlier call was killed, and this one finished its work first:
	// call again with what the sandbox has changed then. Outcomes are those of that work.
	Finished bool
	// Changed is set if the folder was changed.
	Changed bool
	// Resolved are files whose conflict was resolved since it was brought, or counts as such
	// by Continue. If Again is set, the base has advanced for that and nothing else was
	// done: call again with what the sandbox has changed then.
	Resolved []string
	Again    bool
	// OldStage is set if the folder has a .agbox-apply/journal, as agbox left it there when it
	// was killed before it kept its stages in its data folder. It is not used.
	OldStage bool
}

// Conflicts counts what a person must look at.
func (a Applied) Conflicts() int {
	n := 0
	for _, o := range a.Outcomes {
		if o.Conflict() {
			n++
		}
	}
	return n
}

// Apply merges what a sandbox has changed, or with Exact a part of it, into a folder: all of them, or
// none if the process is killed before the point where the next Apply finishes the work (see stage.go).
func Apply(ctx context.Context, changes []Change, o ApplyOptions) (Applied, error) {
	f, leave, err := o.enter()
	if err != nil {
		return Applied{}, err
	}
	defer leave()
	if done, err := f.recover(o); done.Finished || err != nil {
		return done, err
	}
	work := append([]Change{}, changes...)
	if o.Exact {
		work = nil // a part of it
	}
	resolved, open, err := f.settle(o, work)
	if len(resolved) > 0 && !o.Check || err != nil {
		return Applied{Resolved: resolved, Again: err == nil}, err
	}
	var back Applied
	if o.Abort || o.Again {
		if back, err = f.putBack(o, open); o.Abort || err != nil {
			return back, err
		}
	}
	dir, err := filesystem.NewTempDir("merge")
	if err != nil {
		return Applied{}, err
	}
	defer dir.Remove()
	m := &merger{ctx: ctx, ours: f, dir: dir.Path, label: o.Label, open: make(map[string]string)}
	for path, p := range open {
		m.open[path] = p.unresolved()
	}
	decisions, err := m.plan(slices.DeleteFunc(slices.Clone(Select(changes, o.Paths)), func(c Change) bool { return o.Without[c.Path] }))
	if err != nil {
		return Applied{}, err
	}
	old, err := f.state(oldStageName + "/" + journalName)
	out := Applied{OldStage: old != nil && err == nil, Resolved: resolved}
	known, err := f.shown(o)
	if err != nil {
		return out, err
	}
	if o.Continue {
		decisions = out.conclude(decisions, known)
	}
	clean := out.complete(o, decisions)
	if !o.Exact {
		out.unchanged(o, open, back)
	}
	if o.Check {
		return out, nil
	}
	if !o.NoMerge || clean {
		err = f.perform(o, decisions, &out)
		out.Changed = out.Changed || back.Changed
	}
	if err != nil {
		return out, err
	}
	return out, known.replace(o, decisions)
}

// complete fits decisions to the conflicts that are resolved, and reports whether the folder has all
// changed files as they were.
func (a *Applied) complete(o ApplyOptions, all []decision) (clean bool) {
	clean = true
	for i := range all {
		d := &all[i]
		if slices.Contains(a.Resolved, d.Path) {
			d.Kind = Already
		}
		if o.Exact && (d.Kind == Merged || d.Kind == Marked) {
			d.Kind, d.Why = Refused, WhyChanged
		}
		a.Outcomes = append(a.Outcomes, d.Outcome)
		clean = clean && d.Kind != Merged && !d.Conflict()
	}
	return clean
}

// unchanged adds outcomes of files that the sandbox has again as they were before a conflict: one
// that is open, or that was put back.
func (a *Applied) unchanged(o ApplyOptions, open map[string]pending, back Applied) {
	known := make(map[string]bool)
	for _, one := range a.Outcomes {
		known[one.Path] = true
	}
	for _, path := range slices.Sorted(maps.Keys(open)) {
		p := open[path]
		one := Outcome{Change: Change{Path: path, Before: p.Base, After: p.Theirs}, Kind: Refused, Why: p.unresolved()}
		if !known[path] && len(Select([]Change{one.Change}, o.Paths)) > 0 {
			a.Outcomes = append(a.Outcomes, one)
		}
	}
	for _, one := range back.Outcomes {
		if !known[one.Path] && one.Kind == Written {
			a.Outcomes = append(a.Outcomes, one)
		}
	}
}

// enter opens and locks the folder.
func (o *ApplyOptions) enter() (f *folder, leave func(), err error) {
	if o.hook == nil {
		o.hook = func(string) {}
	}
	if f, err = openFolder(o.Folder); err != nil {
		return nil, nil, err
	}
	release, err := f.hold(o.Data, lockName)
	if err != nil {
		f.close()
		return nil, nil, err
	}
	return f, func() { release(); f.close() }, nil
}

// conclude keeps the conflicts of which there are no markers, as if the folder had the
// sandbox's version, if it was shown: Continue.
func (a *Applied) conclude(all []decision, known *shown) (conflicts []decision) {
	for _, d := range all {
		if d.open {
			conflicts = append(conflicts, d)
			continue
		}
		if d.Kind == Marked {
			d.Kind, d.Why = Refused, "not brought yet: `agbox apply` writes markers, or says what it waits for"
			conflicts = append(conflicts, d)
			continue
		}
		if d.Kind != Refused || !usable(d.Path) {
			continue
		}
		if !known.has(d.Change) {
			d.Why += "; no `agbox apply` has shown this version of the sandbox yet, so --continue leaves it"
			conflicts = append(conflicts, d)
			continue
		}
		d.Kind = Already
		a.Resolved = append(a.Resolved, d.Path)
		conflicts = append(conflicts, d)
		if d.From != "" {
			conflicts = append(conflicts, decision{Outcome: Outcome{Change: Change{Path: d.From, Before: d.Before}}})
		}
	}
	return conflicts
}

// recover finishes or removes what a killed call has left.
func (f *folder) recover(o ApplyOptions) (done Applied, err error) {
	s, err := f.openStage(o)
	if s == nil || err != nil {
		return done, err
	}
	defer s.close()
	j, err := s.load()
	if err != nil {
		return done, err
	}
	if j == nil {
		return done, s.remove()
	}
	if o.Check {
		return done, fmt.Errorf("an earlier `agbox apply` to %s was killed: finish it with `agbox apply`, without --check", f.path)
	}
	for _, st := range j.Steps {
		done.Outcomes = append(done.Outcomes, Outcome{Change: Change{Path: string(st.Path), Before: st.Old, After: st.New}, Kind: st.Kind, Target: string(st.Target)})
	}
	left, err := s.complete(j, o)
	done.refuse(left)
	done.Outcomes = slices.DeleteFunc(done.Outcomes, func(one Outcome) bool { return s.undone[one.Path] })
	done.Finished, done.Changed = err == nil, true
	return done, err
}

// perform makes the stage and the journal, and does what they say.
func (f *folder) perform(o ApplyOptions, decisions []decision, out *Applied) error {
	j := &journal{Sandbox: o.Sandbox, Label: o.Label}
	s, err := f.makeStage(o)
	if err != nil {
		return err
	}
	defer s.close()
	for i, d := range decisions {
		if err := s.prepare(j, d); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", decisions[i].Path, err), s.remove())
		}
	}
	if len(j.Steps) == 0 && len(j.Advance) == 0 {
		return s.remove()
	}
	if err := s.commit(j); err != nil {
		return errors.Join(err, s.remove())
	}
	out.Changed = len(j.Steps) > 0
	left, err := s.complete(j, o)
	out.refuse(left)
	return err
}

// WhyChanged is why a file is refused that the folder has changed since it was looked at.
const WhyChanged = "the folder changed it at this moment"

// refuse marks the files that were left, because somebody changed them since the decision.
func (a *Applied) refuse(left []string) {
	for i := range a.Outcomes {
		if slices.Contains(left, a.Outcomes[i].Path) {
			a.Outcomes[i].Kind, a.Outcomes[i].Why = Refused, WhyChanged
		}
	}
}

// prepare stages what a decision needs.
func (s *stage) prepare(j *journal, d decision) error {
	var theirs []byte
	var err error
	if d.Kind != Refused && !d.back {
		theirs, err = read(d.AfterFile(), d.After)
	}
	if d.Kind == Refused || err != nil {
		return err
	}
	switch d.Kind {
	case Removed:
		j.Steps = append(j.Steps, step{Kind: d.Kind, Path: []byte(d.Path), Old: d.old, To: []byte(d.to)})
	case Written, Merged, Marked:
		content := d.content
		if content == nil {
			content = theirs
		}
		staged, err := s.put(d.new, content, s.in.like(d.Path))
		if err != nil {
			return err
		}
		id, sure, err := fileID(s.fd, staged)
		if err != nil {
			return err
		}
		if !sure {
			id = ""
		}
		j.Steps = append(j.Steps, step{Kind: d.Kind, Path: []byte(d.Path), Old: d.old, New: d.new, Staged: staged, Identity: id, Beside: besideName + rand.Text(), Target: []byte(d.Target)})
		if d.back {
			return nil
		}
		if d.Kind == Marked {
			return s.pend(j, d, theirs)
		}
	}
	after := Advanced{Path: []byte(d.Path), File: d.After}
	if d.After != nil {
		// The user may change the folder's file before the base has it.
		if after.Staged, err = s.put(&File{}, theirs, nil); err != nil {
			return err
		}
	}
	j.Advance = append(j.Advance, after)
	return nil
}

// pend notes a conflict that gets markers.
func (s *stage) pend(j *journal, d decision, theirs []byte) error {
	ours, err := s.in.read(d.Path)
	j.Pending = append(j.Pending, pending{
		Path: []byte(d.Path), Label: j.Label, Base: d.Before, Ours: d.old, Theirs: d.After, Marked: d.new, OursContent: ours, TheirsContent: theirs,
	})
	return err
}

// complete does the steps of a journal, advances the base and removes the stage.
func (s *stage) complete(j *journal, o ApplyOptions) (left []string, err error) {
	left, err = s.perform(j)
	if err != nil {
		return left, err
	}
	skip := maps.Clone(s.undone)
	for _, path := range left {
		skip[path] = true
	}
	var files []AdvancedFile
	for _, a := range j.Advance {
		if skip[string(a.Path)] {
			continue
		}
		one := AdvancedFile{Path: string(a.Path), File: a.File}
		if a.File != nil {
			one.Content = func() ([]byte, error) { return s.content(a) }
		}
		files = append(files, one)
	}
	for _, p := range j.Pending {
		if skip[string(p.Path)] {
			continue
		}
		o.hook("remember the conflict in " + string(p.Path))
		if err := p.remember(paths.RecordsIn(o.Data, j.Sandbox), filepath.Dir(s.dir)); err != nil {
			return left, err
		}
	}
	if o.Advance != nil && len(files) > 0 {
		o.hook("advance the base")
		if err := o.Advance(j.Sandbox, files); err != nil {
			return left, err
		}
	}
	o.hook("remove the journal")
	if err := unix.Unlinkat(s.fd, journalName, 0); err != nil {
		return left, err
	}
	return left, s.remove()
}

// content returns the sandbox's content of a file that was brought.
func (s *stage) content(a Advanced) ([]byte, error) {
	if filepath.Base(a.Staged) != a.Staged {
		return nil, fs.ErrNotExist
	}
	file, err := openRegular(s.fd, a.Staged)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	return io.ReadAll(file)
}

// AdvanceAll returns all files of changes for the base of their sandbox.
func AdvanceAll(changes []Change) []AdvancedFile {
	var all []AdvancedFile
	for _, c := range changes {
		if c.From != "" {
			all = append(all, AdvancedFile{Path: c.From})
		}
		one := AdvancedFile{Path: c.Path, File: c.After}
		if c.After != nil {
			one.Content = func() ([]byte, error) { return os.ReadFile(c.AfterFile()) }
		}
		all = append(all, one)
	}
	return all
}

// Unresolved returns the files of a folder that have the markers of conflicts of a sandbox. data is
// the folder with agbox's own files about folders.
func Unresolved(dir, data, sandbox string) ([]string, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.close()
	_, open, err := f.settle(ApplyOptions{Folder: dir, Data: data, Sandbox: sandbox, Check: true}, nil)
	maps.DeleteFunc(open, func(_ string, p pending) bool { return p.standing.without() })
	return slices.Sorted(maps.Keys(open)), err
}

// putBack gives files that still are as a conflict left them their version of before.
func (f *folder) putBack(o ApplyOptions, open map[string]pending) (Applied, error) {
	var out Applied
	var back []decision
	var done []pending
	for path, p := range open {
		d := decision{
			Outcome: Outcome{Change: Change{Path: path, Before: p.Marked, After: p.Ours}, Kind: Written},
			old:     p.Marked, new: p.Ours, content: p.OursContent, back: true,
		}
		now, err := f.state(path)
		switch {
		case len(Select([]Change{d.Change}, o.Paths)) == 0:
			continue
		case err != nil && !errors.As(err, new(*errBlocked)):
			return out, err
		case p.standing.without() && o.Again:
			done = append(done, p)
			delete(open, path)
			continue
		case err != nil || !Same(now, p.Marked):
			if d.Kind, d.Why = Refused, "the folder has changed it since the conflict"; p.standing != marked {
				d.Why = p.unresolved()
			}
		default:
			done = append(done, p)
			delete(open, path)
		}
		if d.content == nil {
			d.content = []byte{}
		}
		back = append(back, d)
		out.Outcomes = append(out.Outcomes, d.Outcome)
	}
	if o.Check || len(done) == 0 {
		return out, nil
	}
	if err := f.perform(o, back, &out); err != nil {
		return out, err
	}
	return out, o.forget(done)
}

// Settled is what Settle found.
type Settled struct {
	// Again is set if the base has advanced, or the folder was changed: compare anew.
	Again bool
	// Open are the files with conflicts that the user has not resolved, and why, as the end of a sentence.
	Open map[string]string
}

// Settle finishes what killed calls have left in a folder, and advances the base of a sandbox
// for the conflicts that the user has resolved. work is all that the sandbox has changed.
func Settle(o ApplyOptions, work []Change) (Settled, error) {
	out := Settled{Open: make(map[string]string)}
	f, release, err := o.enter()
	if err != nil {
		return out, err
	}
	defer release()
	done, err := f.recover(o)
	if done.Finished || err != nil {
		out.Again = true
		return out, err
	}
	o.Exact = true
	resolved, open, err := f.settle(o, append([]Change{}, work...))
	out.Again = len(resolved) > 0
	for path, p := range open {
		out.Open[path] = p.unresolved()
	}
	return out, err
}
