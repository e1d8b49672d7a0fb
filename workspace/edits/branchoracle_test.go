package edits

import (
	"cmp"
	"slices"
	"strings"
)

// What must hold of a branch after apply --branch, said of files, commits and modes, and of nothing
// that the code knows. What must hold of lines is in histories_test.go.

// look is what a person sees of both sides of a call.
type look struct {
	// work are the files of the sandbox, inside those that its tip has, first those that the copied
	// commit has, and before and after those of the branch.
	work, inside, first, before, after tree
	// ignored and stopped say of which files of the sandbox git has said so: it ignores them, or it
	// has tracked them and does not any more.
	ignored, stopped map[string]bool
	// tip and now are what the branch was and is, wereExecutable and areExecutable its executables.
	tip, now                      string
	wereExecutable, areExecutable []string
	// commits is set if those of the sandbox come.
	commits bool
	out     Committed
}

// committed reports whether commits come that have a file as the workspace has it.
func (l look) committed(name string) bool {
	return l.commits && plain(l.inside[name]) == plain(l.work[name])
}

// drop notes the files that an edit of the user removes from the branch.
func (w *twigs) drop(before, after tree) {
	for name := range before {
		if after[name] == "" {
			w.dropped[name] = true
		}
	}
	for name := range after {
		delete(w.dropped, name)
	}
}

// users reports whether the user has changed a file, or one that the sandbox has renamed to it.
func (w *twigs) users(name string) bool {
	seen := make(map[string]bool)
	for all := []string{name}; len(all) > 0; all = all[1:] {
		if w.touched[all[0]] {
			return true
		}
		if !seen[all[0]] {
			seen[all[0]] = true
			all = append(all, w.origins[all[0]]...)
		}
	}
	return false
}

// touch notes the files that an edit of the user changes.
func (w *twigs) touch(before, after tree, same func(string) string) {
	for _, two := range [][2]tree{{before, after}, {after, before}} {
		for name, text := range two[0] {
			if other, there := two[1][name]; !there || same(other) != same(text) {
				w.touched[name] = true
			}
		}
	}
}

// moves sets a branch to what the desk has, with the files that git only stores otherwise since.
func (w *twigs) moves(name string) {
	w.t.Helper()
	to := w.desk.head()
	w.touch(w.files(w.home, cmp.Or(w.home.tipOf(name), w.home.tipOf("main"))), w.files(w.home, to), same)
	w.home.must("", "update-ref", "refs/heads/"+name, to)
}

// rename notes the files that an edit of the sandbox has from others.
func (w *twigs) rename(before, after tree) {
	for to, text := range after {
		for name, was := range before {
			if to != name && before[to] == "" && plain(was) == plain(text) {
				w.origins[to] = append(w.origins[to], name)
				if w.landed[name] {
					w.landed[to] = true // --squash renames what the branch has
				}
			}
		}
	}
}

// justified says which conflicts are about files that only the sandbox has changed.
func (w *twigs) justified(l look, out Committed) {
	w.t.Helper()
	for _, one := range out.Outcomes {
		switch {
		case l.stopped[one.Path] && (len(w.form.work) > 1 || w.form.later == allCase):
			continue // git writes another file than the sandbox of what came to the branch, or by a filter that the copied commit did not have
		case w.landed[one.Path]:
			continue // the branch has an older version of the sandbox, or the user's
		}
		if one.Conflict() && !w.users(one.Path) && (one.From == "" || !w.users(one.From)) {
			w.t.Errorf("there is a conflict, and only the sandbox has changed the file: %+v", one)
		}
	}
}

// wanted is what the branch must have of a file that only the sandbox has changed.
func (w *twigs) wanted(l look, name string) (text string, known bool) {
	switch {
	case w.leftOut != "" && strings.HasPrefix(name, w.leftOut):
		return l.first[name], true
	case l.stopped[name]:
		// A commit has removed it; a second time, it may be the user who has it again. Without the commits,
		// nothing says that git had tracked it.
		return "", !w.again[name] && (l.commits || l.first[name] != "")
	case slices.Contains(l.out.Outside, name), slices.Contains(l.out.AtHome, name), w.landed[name] && !l.committed(name):
		return "", false
	case l.ignored[name]:
		return "", l.before[name] == ""
	}
	return l.work[name], true
}

// checkFiles says what is wrong with files that only one side has changed.
func (w *twigs) checkFiles(l look) {
	w.t.Helper()
	for _, name := range l.out.Outside {
		if l.before[name] != "" && !l.stopped[name] {
			w.t.Errorf("%s is named as outside of git, and the branch had it", name)
		}
	}
	names := make(map[string]bool)
	for _, tr := range []tree{l.work, l.before, l.after} {
		for name := range tr {
			names[name] = true
		}
	}
	for name := range names {
		if w.users(name) {
			continue
		}
		want, known := w.wanted(l, name)
		if got := l.after[name]; known && plain(got) != plain(want) {
			w.t.Errorf("the branch has of %s %q, which only the sandbox has changed, and not %q", name, got, want)
		}
		if known && want != "" && !w.form.modes && !w.landed[name] && strings.HasPrefix(l.work[name], "x:") != slices.Contains(l.areExecutable, name) {
			w.t.Errorf("the branch has another mode of %s, which only the sandbox has changed", name)
		}
	}
	for name := range l.before {
		if l.after[name] != "" && !w.modesInside[name] && slices.Contains(l.wereExecutable, name) != slices.Contains(l.areExecutable, name) {
			w.t.Errorf("the branch has another mode of %s than before, which the sandbox has not changed", name)
		}
	}
	for name := range w.dropped {
		if l.after[name] != "" && w.base[name] != "" && !w.lost[name] && !(l.commits && (l.first[name] == "" || w.again[name])) { // git merges what only commits of the sandbox have, or have again, as new
			w.t.Errorf("the branch has %s again, which the user has removed", name)
		}
		if l.after[name] != "" {
			delete(w.dropped, name)
		}
	}
	is := linesOf(l.after)
	for line := range linesOf(l.before) {
		if w.mine[line] && !is[line] {
			w.t.Errorf("the branch has lost %q, which the sandbox never had", line)
		}
	}
}

// checkCommits says what is wrong with the commits of the branch.
func (w *twigs) checkCommits(l look, main string) {
	w.t.Helper()
	if w.home.tipOf("main") != main {
		w.t.Error("another branch has moved")
	}
	if l.now == "" || l.now == l.tip {
		if l.commits && len(l.out.Commits) > 0 {
			w.t.Errorf("%d commits are said to have come, and the branch has not moved", len(l.out.Commits))
		}
		if l.commits && l.now == "" {
			w.t.Error("there are commits of the sandbox, and no branch")
		}
	}
	if l.now == "" {
		return
	}
	not := []string{"^" + l.now, main}
	if l.tip != "" {
		not[1] = l.tip
	}
	tip := w.in.tipOf("main")
	if l.tip == "" && l.commits {
		not[1] = w.copied
	}
	if l.commits {
		not = append(not, tip)
	}
	if lost := w.home.must("", append([]string{"rev-list"}, not...)...); lost != "" {
		w.t.Errorf("the branch has not the commits %q", lost)
	}
	args := []string{"log", "--format=%H%x09%an <%ae>%x09%cn <%ce>%x09%B%x09%T%x09%P%x00", l.now}
	for _, one := range not[1:] {
		args = append(args, "^"+one)
	}
	const ann = "Ann <ann@example.org>"
	all := strings.Split(strings.TrimRight(w.home.must("", args...), "\x00\n"), "\x00")
	if all[0] == "" {
		return
	}
	words := strings.Split(all[0], "\t")
	if len(all) > 1 || len(words) != 6 || words[1] != ann || words[2] != ann || strings.TrimSpace(words[3]) != "Work" {
		w.t.Errorf("beside the commits of both sides the branch has %q", all)
		return
	}
	if parent := words[5]; parent != "" && !strings.Contains(parent, " ") && strings.TrimSpace(w.home.must("", "rev-parse", parent+"^{tree}")) == words[4] {
		w.t.Error("the commit on the branch changes nothing")
	}
}

// check says what is wrong with the branch.
func (w *twigs) check(l look, main string) {
	w.t.Helper()
	w.checkFiles(l)
	w.checkCommits(l, main)
}
