package edits

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What both sides do must meet in the same file, and random edits do so seldom.

// meet plays one of five such courses.
func (w *twigs) meet(which int) {
	w.t.Helper()
	switch which {
	case 0:
		w.renames()
	case 1:
		w.drops()
	case 2:
		w.apart()
	case 3:
		w.land()
	case 4:
		w.onlyCommits()
	}
}

// common returns a file of the sandbox, as it was brought, that the branch has; empty if there is none.
func (w *twigs) common() string {
	w.t.Helper()
	work, there := w.load(w.in), w.files(w.home, w.tip())
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(work)), func(name string) bool {
		return strings.HasPrefix(name, ".git") || there[name] == "" || work[name] != w.base[name]
	})
	if len(names) == 0 {
		return ""
	}
	return names[w.r.IntN(len(names))]
}

// adds has the user add a line to a file of the branch.
func (w *twigs) adds(name string) {
	w.t.Helper()
	w.userEdits(false, func(before tree) tree {
		after := maps.Clone(before)
		after[name] = w.write("u", w.line("u")+plain(before[name]))
		return after
	})
}

// renames has the sandbox rename a file that the user has edited, and brings that with --squash, which
// follows renames.
func (w *twigs) renames() {
	w.t.Helper()
	name, before := w.common(), w.load(w.in)
	to := "to" + w.line("")
	to = strings.TrimSpace(to)
	if name == "" || before[to] != "" {
		return
	}
	if w.r.IntN(3) > 0 {
		w.adds(name)
	}
	after := maps.Clone(before)
	delete(after, name)
	after[to] = before[name]
	w.inside(before, after)
	w.say("rename", "%s to %s", name, to)
	w.bring(true)
}

// drops has the sandbox edit a file that the user has removed.
func (w *twigs) drops() {
	w.t.Helper()
	name, before := w.common(), w.load(w.in)
	if name == "" {
		return
	}
	w.userEdits(false, func(before tree) tree {
		after := maps.Clone(before)
		delete(after, name)
		return after
	})
	after := maps.Clone(before)
	after[name] = w.write("s", plain(before[name])+w.line("s"))
	w.inside(before, after)
	w.say("drop", "%s", name)
	w.bring(w.r.IntN(2) == 0)
}

// apart has the sandbox commit a file that git ignores, and stop tracking it.
func (w *twigs) apart() {
	w.t.Helper()
	before := w.load(w.in)
	after := maps.Clone(before)
	after["new.o"] = w.write("s", plain(before["new.o"])+w.line("s"))
	w.inside(before, after)
	w.in.must("", "add", "-f", "new.o")
	w.commit(false)
	if w.r.IntN(2) == 0 {
		w.bring(false)
	}
	w.untrackOne(after, "new.o")
	w.say("apart", "")
	w.bring(false)
}

// land brings the work to the folder.
func (w *twigs) land() {
	w.t.Helper()
	now := w.load(w.in)
	for _, c := range differences(w.t, w.folder, now) {
		if w.in.ignores(c.Path) && w.base[c.Path] == "" {
			continue
		}
		delete(w.lost, c.Path)
		if err := os.Remove(filepath.Join(w.home.dir, c.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.t.Fatal(err)
		}
		if now[c.Path] != "" {
			tree{c.Path: now[c.Path]}.write(w.t, w.home.dir)
		}
		for i, base := range []tree{w.folder, w.base} {
			if i == 1 && w.brought[c.Path] {
				continue
			}
			if delete(base, c.Path); now[c.Path] != "" {
				base[c.Path] = now[c.Path]
			}
			if i == 1 {
				w.landed[c.Path] = true
			}
		}
	}
	w.say("land", "")
}

// ignores reports whether git ignores a file of a work tree.
func (g repository) ignores(name string) bool {
	_, err := g.git("", "check-ignore", "-q", name)
	return err == nil
}

// onlyCommits has the sandbox commit what was not committed when it was copied, and the user edit that.
func (w *twigs) onlyCommits() {
	w.t.Helper()
	first := w.files(w.home, w.copied)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.start)), func(name string) bool {
		return strings.HasPrefix(name, ".git") || plain(first[name]) == plain(w.start[name]) || w.load(w.in)[name] != w.start[name]
	})
	if len(names) == 0 {
		w.say("only", "none")
		return
	}
	name := names[w.r.IntN(len(names))]
	w.in.must("", "add", "-A")
	w.commit(false)
	w.bring(false)
	if w.files(w.home, w.tip())[name] != "" {
		w.adds(name)
	}
	w.in.must("", "add", "-A")
	w.commit(true)
	w.say("only", "%s", name)
	w.bring(false)
}
