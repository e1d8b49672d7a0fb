package edits

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Calls of agbox as package client makes them, with a daemon and a sandbox in memory.

func (w *world) options() ApplyOptions {
	return ApplyOptions{Folder: w.folder(), Data: filepath.Join(w.top, "data"), Sandbox: "s", Label: "sandbox", Advance: w.advance, hook: w.step}
}

func (w *world) pushes() *Pushes {
	w.t.Helper()
	p, err := LoadPushes(filepath.Join(w.top, "pushes"))
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// branched is a version that went to the branch; without a text, the file was removed there. past means
// that the folder has got a later one since, and had that the branch had it before. merged is the
// number of the merge by which the user's commit has it, and 0 if that has it not.
type branched struct {
	text      *string
	past, had bool
	merged    int
}

func (b branched) inFolder() bool { return b.merged > 0 && !b.had && !b.past }

// with returns the base with those versions that count.
func (w *world) with(counts func(branched) bool) tree {
	out := maps.Clone(w.base)
	for name, all := range w.branched {
		for _, one := range slices.Backward(all) {
			if !counts(one) {
				continue
			}
			if delete(out, name); one.text != nil {
				out[name] = *one.text
			}
			break
		}
	}
	return out
}

// home is what was brought to the folder or to the branch.
func (w *world) home() tree { return w.with(func(b branched) bool { return !b.past }) }

// there is what the folder has of it.
func (w *world) there() tree { return w.with(branched.inFolder) }

// compare returns what counts as changed by the sandbox.
func (w *world) compare(base tree) []Change {
	w.t.Helper()
	changes, _, _ := w.pushes().Sort(w.differences(base))
	there := w.there()
	return slices.DeleteFunc(changes, func(c Change) bool {
		text, known := there[c.Path] // it is home in the folder
		return !known && c.After == nil || known && Same(c.After, version(text))
	})
}

func (w *world) differences(base tree) []Change {
	w.t.Helper()
	theirs := maps.Clone(w.sandbox)
	maps.DeleteFunc(theirs, func(name, _ string) bool { return strings.HasSuffix(name, ".o") && base[name] == "" })
	dir, err := os.MkdirTemp(w.top, "work-")
	if err != nil {
		w.t.Fatal(err)
	}
	return differencesIn(w.t, dir, base, theirs)
}

// text returns the content of an advanced file, as in a tree.
func (w *world) text(f AdvancedFile) (string, bool) {
	w.t.Helper()
	content, err := f.Content()
	if err != nil || !f.File.Is(content) {
		return "", false
	}
	if f.File.Link {
		return "l:" + string(content), true
	}
	return string(content), true
}

func (w *world) advance(_ string, files []AdvancedFile) error {
	w.step("the base advances")
	w.set(files, false)
	w.step("the base has advanced")
	return nil
}

// set makes files the base. pushed means that they come from the folder.
func (w *world) set(files []AdvancedFile, pushed bool) {
	for _, f := range files {
		text, ok := "", true
		if f.File != nil {
			text, ok = w.text(f)
		}
		switch {
		case !ok:
			continue
		case f.File == nil:
			delete(w.base, f.Path)
		default:
			w.base[f.Path] = text
		}
		for i := range w.branched[f.Path] {
			w.branched[f.Path][i].past = true
		}
		if pushed {
			delete(w.branched, f.Path)
		}
	}
}

// pushed makes what was written to the sandbox the base.
func (w *world) pushed(files []AdvancedFile) {
	w.step("the base advances")
	w.set(files, true)
	w.step("the base has advanced")
}

// alone fails if there is a conflict although only one side edits.
func (w *world) alone(what string, conflicts int) {
	w.t.Helper()
	w.counts["conflict"] += min(conflicts, 1)
	if conflicts > 0 && !(w.user && w.agent) {
		w.t.Errorf("%s has %d conflicts, and only one side edits", what, conflicts)
	}
}

// look notes what a call about some paths, or nil for all, may show.
func (w *world) look(paths []string) {
	for _, c := range Select(Renames(w.differences(w.there())), paths) {
		if text := w.sandbox[c.Path]; !slices.Contains(w.looked[c.Path], text) {
			w.looked[c.Path] = append(w.looked[c.Path], text)
		}
	}
}

// apply returns the number of conflicts.
func (w *world) apply(with ApplyOptions) int {
	w.t.Helper()
	o := w.options()
	o.Abort, o.Again, o.Continue, o.Paths, o.NoMerge = with.Abort, with.Again, with.Continue, with.Paths, with.NoMerge
	o.Hidden = func(path string) (bool, error) { return w.sandbox[path] != w.there()[path], nil }
	if o.Continue {
		ours := w.ours()
		for _, c := range Select(Renames(w.differences(w.there())), o.Paths) {
			w.oracle.kept(append(w.looked[c.Path], ours[c.Path], w.base[c.Path])...)
		}
	}
	w.look(o.Paths)
	for {
		changes, landed, _ := w.pushes().Sort(w.differences(w.there()))
		if len(landed) > 0 {
			w.pushed(AdvanceAll(landed))
			continue
		}
		out, err := Apply(w.t.Context(), Renames(changes), o)
		if err != nil {
			w.t.Fatalf("apply: %v\n%s", err, strings.Join(w.log, "\n"))
		}
		if out.Finished || out.Again {
			continue
		}
		w.alone("apply", out.Conflicts())
		return out.Conflicts()
	}
}

// pull brings all changed files whole, or none.
func (w *world) pull() {
	w.t.Helper()
	completes, paths, before := w.killed, w.some(), w.ours()
	w.call("pull", func() { w.apply(ApplyOptions{NoMerge: true, Paths: paths}) })
	if completes { // it brings what a killed call began, too
		return
	}
	after, all := w.ours(), maps.Clone(before)
	maps.Copy(all, after)
	for name := range all {
		if after[name] != before[name] && after[name] != w.sandbox[name] {
			w.t.Errorf("pull makes of %s %q, and not %q, which the sandbox has", name, after[name], w.sandbox[name])
		}
	}
	if w.killed || maps.Equal(before, after) {
		return
	}
	w.counts["pulled"]++
	if diff := w.seen().diff; paths == nil && len(diff) > 0 {
		w.t.Errorf("pull brings a part of the work: the folder %s, and %v is left", changed(before, after), diff)
	}
}

// tip is a branch without git.
type tip tree

func (b tip) state(name string) (*File, error) {
	if text, ok := b[name]; ok {
		return version(text), nil
	}
	return nil, nil
}

func (b tip) read(name string) ([]byte, error) { return []byte(content(b[name])), nil }

func (b tip) freed(string, map[string]bool) (bool, error) { return false, nil }

func (w *world) toBranch() {
	w.t.Helper()
	_, landed, _ := w.pushes().Sort(w.differences(w.there()))
	if len(landed) > 0 {
		w.pushed(AdvanceAll(landed))
	}
	changes, _, _ := w.pushes().Sort(w.differences(w.with(func(branched) bool { return true })))
	changes = Renames(slices.DeleteFunc(changes, func(c Change) bool { // for git, they are not its files
		_, has := w.branch[c.Path]
		return c.Before != nil && !has && !w.ever[c.Path]
	}))
	m := &merger{ctx: w.t.Context(), ours: tip(w.branch), dir: w.top, label: "sandbox"}
	decisions, err := m.plan(changes)
	if err != nil {
		w.t.Fatal(err)
	}
	after, had := maps.Clone(w.branch), make(map[string]bool)
	for _, d := range decisions {
		had[d.Path] = d.Kind == Already
		switch d.Kind {
		case Marked, Refused:
			return
		case Removed:
			delete(after, d.Path)
		case Written, Merged:
			text := string(d.content)
			if d.content == nil {
				text = w.sandbox[d.Path]
			}
			after[d.Path] = text
		}
	}
	w.step("the branch moves")
	w.branch = after
	for name := range after {
		w.ever[name] = true
	}
	w.step("the work counts as brought to a branch")
	for _, f := range AdvanceAll(changes) {
		one := branched{had: had[f.Path]}
		if f.File != nil {
			text, _ := w.text(f)
			one.text = &text
		}
		w.branched[f.Path] = append(w.branched[f.Path], one)
	}
}

func (w *world) sync() {
	w.t.Helper()
	for range 10 {
		if !w.round() {
			return
		}
	}
	w.t.Error("sync does not end")
}

// round is one of client.syncing.
func (w *world) round() (again bool) {
	w.t.Helper()
	w.look(nil)
	p := w.pushes()
	fatal := func(err error) {
		if err != nil {
			w.t.Fatalf("sync: %v\n%s", err, strings.Join(w.log, "\n"))
		}
	}
	there := w.there()
	changes, landed, left := p.Sort(w.differences(there))
	for _, one := range left {
		w.step("what was left is ended")
		text := w.sandbox[one.At]
		_, taken := w.sandbox[one.Path]
		switch {
		case one.Untouched:
			delete(w.sandbox, one.At)
		case taken:
			fatal(p.Forget([]AdvancedFile{{Path: one.Path}}))
		default:
			delete(w.sandbox, one.At)
			w.sandbox[one.Path] = text
		}
	}
	if len(left) > 0 {
		return true
	}
	if len(landed) > 0 {
		done := AdvanceAll(landed)
		w.pushed(done)
		fatal(p.Forget(done))
		return true
	}
	fatal(p.Keep(changes))
	settled, err := Settle(w.options(), changes)
	fatal(err)
	if settled.Again {
		return true
	}
	files := make(map[string]*File)
	for name, text := range there {
		files[name] = version(text)
	}
	scan, err := (&Scanner{Folder: w.folder()}).Scan(w.t.Context(), Shared{Files: files})
	fatal(err)
	w.noteMerged(there, changes, scan)
	sides := Part(files, changes, scan.Changed, settled.Open)
	conflicts := len(sides.Clashes)
	if len(sides.ToFolder) > 0 {
		o := w.options()
		o.Exact = true
		out, err := Apply(w.t.Context(), sides.ToFolder, o)
		fatal(err)
		again = out.Changed || out.Finished
		conflicts += out.Conflicts()
	}
	w.alone("sync", conflicts)
	return w.push(p, sides.ToSandbox) || again
}

// noteMerged makes what both sides have by a merged branch the base.
func (w *world) noteMerged(there tree, changes []Change, scan Scan) {
	w.step("what both have is noted")
	for name, all := range w.branched {
		_, ours := scan.Changed[name]
		merged := slices.ContainsFunc(all, branched.inFolder)
		if !merged || ours || slices.ContainsFunc(changes, func(c Change) bool { return c.Path == name }) {
			continue
		}
		text, has := there[name]
		if delete(w.base, name); has {
			w.base[name] = text
		}
		for i := range all {
			all[i].past = true
		}
	}
}

// push writes files to the sandbox.
func (w *world) push(p *Pushes, changes []Change) bool {
	w.t.Helper()
	if len(changes) == 0 {
		return false
	}
	w.step("the pushes are noted")
	if err := p.Note(changes, func() string { w.next++; return fmt.Sprintf(".agbox-sync-%d", w.next) }); err != nil {
		w.t.Fatal(err)
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return strings.Compare(gone(a), gone(b)) })
	ours := w.ours()
	var done []AdvancedFile
	for _, c := range changes {
		temp := path.Join(path.Dir(c.Path), p.Temp(c.Path))
		link := c.After != nil && c.After.Link
		if c.Before != nil && (c.After == nil || link || c.Before.Link) {
			w.step("it is moved away")
			w.oracle.moved(w.sandbox[c.Path])
			w.sandbox[temp] = w.sandbox[c.Path]
			delete(w.sandbox, c.Path)
			w.step("it is removed")
			delete(w.sandbox, temp)
		}
		if link {
			w.step("the link is made")
			w.sandbox[temp] = ours[c.Path]
			w.step("the link is moved")
			delete(w.sandbox, temp)
		}
		if c.After != nil {
			w.step("it is written")
			w.sandbox[c.Path] = ours[c.Path]
		}
		text := []byte(content(ours[c.Path]))
		done = append(done, AdvancedFile{Path: c.Path, File: c.After, Content: func() ([]byte, error) { return text, nil }})
	}
	w.pushed(done)
	if err := p.Forget(done); err != nil {
		w.t.Fatal(err)
	}
	return true
}

func gone(c Change) string {
	if c.After == nil {
		return ""
	}
	return "written"
}

// converge ends all conflicts, and then both sides have to be the same.
func (w *world) converge() {
	w.t.Helper()
	plain := func(tr tree) tree {
		out := maps.Clone(tr)
		maps.DeleteFunc(out, func(name, _ string) bool { return strings.HasSuffix(name, ".o") && w.base[name] == "" })
		return out
	}
	for range 20 {
		var conflicts int
		w.call("apply at the end", func() { w.killIn = -1; conflicts = w.apply(ApplyOptions{}) })
		ours := w.ours()
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			if hasMarkers(ours[name]) {
				w.resolve(name, ours[name])
				conflicts--
			}
		}
		if conflicts > 0 {
			w.call("continue at the end", func() { w.killIn = -1; w.apply(ApplyOptions{Continue: true}) })
		}
		w.call("sync at the end", func() { w.killIn = -1; w.sync() })
		if w.t.Failed() || maps.Equal(plain(w.ours()), plain(w.sandbox)) && len(w.seen().diff) == 0 {
			return
		}
	}
	w.t.Errorf("in the end the folder has %q, and the sandbox %q", w.ours(), w.sandbox)
}
