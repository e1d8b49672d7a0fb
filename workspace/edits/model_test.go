package edits

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// histories is how many random histories are played. HISTORIES=10000 plays more, and
// HISTORY=7 begins at that one, or plays only that.
const histories = 150

// TestNothingOfEitherSideIsLostOrTurnedBack plays histories of edits on both sides, calls of
// apply, pull, sync and --branch, conflicts that are resolved or abandoned, and kills at any change.
// What must hold is in oracle_test.go, which knows nothing of the code: each line is written
// once, so it can be followed.
func TestNothingOfEitherSideIsLostOrTurnedBack(t *testing.T) {
	memory := elsewhere(t)
	t.Setenv("TMPDIR", memory)
	t.Setenv("AGBOX_HOME", memory)
	first, n := 0, histories
	if one, err := strconv.Atoi(os.Getenv("HISTORY")); err == nil {
		first, n = one, one+1
	}
	if all, err := strconv.Atoi(os.Getenv("HISTORIES")); err == nil {
		n = all
	}
	counts := make(map[string]int)
	for seed := first; seed < n && !t.Failed(); seed++ {
		play(t, uint64(seed), counts)
	}
	t.Logf("%d histories: %v", n-first, counts)
	for _, what := range []string{"apply", "pull", "pulled", "sync", "branch", "killed", "clean", "conflict", "abandon", "resolve", "abort", "again", "continue", "merge", "unmerge"} {
		if n-first >= histories && counts[what] < (n-first)/50 {
			t.Errorf("the histories have too little of %q", what)
		}
	}
}

// world is a folder, a sandbox with a copy of it, a branch, and what the daemon knows.
type world struct {
	t      *testing.T
	r      *rand.Rand
	top    string
	counts map[string]int
	// sides says who edits: only one side cannot come into conflict.
	user, agent bool

	sandbox, base, branch tree
	// branched has the versions that went to the branch, and ever the files that it has had. head is what
	// the user's commit has of the files, and unmerged what it had before the branch was merged.
	branched       map[string][]branched
	ever           map[string]bool
	head, unmerged tree
	// retaken are the lines that the user got back by that.
	retaken map[string]bool
	merges  int
	next    int
	oracle  *oracle
	// looked has the versions of the sandbox's files that calls have looked at, and may have shown.
	looked map[string][]string
	log    []string
	// killIn is the number of changes before a kill; negative: none. killed means that the last
	// call was.
	killIn int
	killed bool
}

func play(t *testing.T, seed uint64, counts map[string]int) {
	t.Helper()
	top, err := os.MkdirTemp("", "history-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	r := rand.New(rand.NewPCG(seed, 24))
	w := &world{t: t, r: r, top: top, counts: counts, branched: make(map[string][]branched), looked: make(map[string][]string), retaken: make(map[string]bool), ever: make(map[string]bool), killIn: -1, oracle: newOracle()}
	who := r.IntN(6)
	w.user, w.agent = who != 0, who != 1
	start := tree{".gitignore": "*.o\n", "kept.o": w.line("u")}
	for n := range 4 {
		start[fmt.Sprintf("%sf%d", []string{"", "d/"}[n%2], n)] = w.line("u") + w.line("u") + w.line("u") + w.line("u") + w.line("u")
	}
	start.write(t, w.folder())
	w.sandbox, w.base, w.branch, w.head = maps.Clone(start), maps.Clone(start), maps.Clone(start), maps.Clone(start)
	for name := range start {
		w.ever[name] = true
	}
	for range 30 {
		w.act()
		if t.Failed() {
			break
		}
	}
	if !t.Failed() {
		w.converge()
	}
	if t.Failed() {
		t.Errorf("history %d:\n%s", seed, strings.Join(w.log, "\n"))
	}
}

func (w *world) folder() string { return filepath.Join(w.top, "folder") }

func (w *world) ours() tree {
	w.t.Helper()
	return load(w.t, w.folder())
}

// line makes a line that nobody has written before.
func (w *world) line(by string) string {
	w.next++
	return fmt.Sprintf("%s%d\n", by, w.next)
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// step is called before each change of a call of agbox.
func (w *world) step(what string) {
	if w.killIn == 0 {
		w.killIn = -1
		panic(killed(what))
	}
	w.killIn--
}

// changed is a text about two versions of a tree.
func changed(before, after tree) string {
	var all []string
	for name := range before {
		if _, still := after[name]; !still {
			all = append(all, "loses "+name)
		}
	}
	for name, text := range after {
		if was, known := before[name]; !known || was != text {
			all = append(all, fmt.Sprintf("gets %s %q", name, text))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// act does one thing at random.
func (w *world) act() {
	w.t.Helper()
	marked := slices.ContainsFunc(slices.Collect(maps.Values(w.ours())), hasMarkers)
	switch n := w.r.IntN(20); {
	case n == 0 && w.user && w.unmerged != nil && w.r.IntN(4) == 0:
		w.unmerge()
	case n < 6 || n < 14 && marked:
		if w.user {
			w.edit()
		}
	case n < 11:
		if w.agent {
			before := w.sandbox
			w.sandbox = w.change(w.sandbox, "s")
			// Right after a push was killed, a file that is what it was before looks like one
			// to which the push has not come, and one that is gone like one that it has moved away.
			there := w.there()
			for name := range w.pushes().files {
				if w.sandbox[name] == there[name] || w.sandbox[name] == "" {
					w.sandbox = before
				}
			}
			// It takes back what it has changed.
			if names := slices.Sorted(maps.Keys(w.base)); w.r.IntN(6) == 0 && len(names) > 0 && len(w.pushes().files) == 0 {
				name := names[w.r.IntN(len(names))]
				w.sandbox = maps.Clone(before)
				w.sandbox[name] = w.base[name]
				w.oracle.returned(w.base[name])
			}
			w.oracle.edited(&w.oracle.agent, before, w.sandbox)
			w.say("the sandbox %s", changed(before, w.sandbox))
		}
	case n < 14:
		if w.r.IntN(3) == 0 {
			w.pull()
		} else {
			w.call("apply", func() { w.apply(ApplyOptions{Paths: w.some()}) })
		}
	case n < 17:
		w.call("sync", w.sync)
	case n == 17:
		if w.call("branch", w.toBranch); w.user && w.r.IntN(2) == 0 {
			w.merge()
		}
	case n == 18:
		w.call("abort", func() { w.apply(ApplyOptions{Abort: true, Paths: w.some()}) })
	default:
		if w.r.IntN(2) == 0 {
			w.call("again", func() { w.apply(ApplyOptions{Again: true, Paths: w.some()}) })
		} else {
			w.call("continue", func() { w.apply(ApplyOptions{Continue: true, Paths: w.some()}) })
		}
	}
}

// some returns a file of either side to which a call is limited; nil is all.
func (w *world) some() []string {
	names := slices.Sorted(maps.Keys(w.ours()))
	names = append(names, slices.Sorted(maps.Keys(w.sandbox))...)
	if len(names) == 0 || w.r.IntN(3) > 0 {
		return nil
	}
	name := append(names, "d")[w.r.IntN(len(names)+1)]
	w.say("a call about %s", name)
	return []string{name}
}

// call plays a call of agbox, which may be killed, and asks the oracle.
func (w *world) call(name string, what func()) {
	w.t.Helper()
	w.counts[name]++
	before, base := w.seen(), maps.Clone(w.base)
	if w.killIn = -1; w.r.IntN(3) == 0 {
		w.killIn = w.r.IntN(25)
	}
	completes := w.killed
	w.killed = false
	func() {
		defer func() {
			if at, ok := recover().(killed); ok {
				w.killed = true
				w.counts["killed"]++
				w.say("  killed before %q", string(at))
			}
		}()
		what()
	}()
	w.killIn = -1
	if w.killed {
		w.halfway(before.folder, base)
	}
	w.killed = w.killed || completes && name == "branch" // it leaves the folder to the next call
	after := w.seen()
	w.say("%s: the folder %s, the sandbox %s", name, changed(before.folder, after.folder), changed(before.sandbox, after.sandbox))
	for _, wrong := range w.oracle.check(before, after, completes) {
		w.t.Errorf("after %s: %s", name, wrong)
	}
}

// halfway notes what a killed call has brought to the folder and does not count as home, or takes it out.
func (w *world) halfway(before, base tree) {
	w.t.Helper()
	if journals, err := filepath.Glob(filepath.Join(w.top, "data", "*", stageName, journalName)); err != nil || len(journals) == 0 {
		return
	}
	after := w.ours()
	for name := range after {
		if after[name] != before[name] && base[name] == w.base[name] {
			maps.Copy(w.oracle.halfway, written(after[name]))
			delete(after, name)
		}
	}
	if w.r.IntN(4) > 0 {
		return
	}
	for name := range before {
		if base[name] == w.base[name] {
			after[name] = before[name]
		}
	}
	replace(w.t, w.folder(), after)
	w.counts["clean"]++
	w.say("the user takes out what the killed call has brought")
}

// seen is what a person can see of all sides.
func (w *world) seen() sight {
	w.t.Helper()
	diff := make(map[string]bool)
	for _, c := range w.compare(w.home()) {
		diff[c.Path] = true
	}
	return sight{folder: w.ours(), sandbox: maps.Clone(w.sandbox), branch: maps.Clone(w.branch), diff: diff, killed: w.killed}
}

// edit is what the user does in the folder. A file with markers is resolved or abandoned.
func (w *world) edit() {
	w.t.Helper()
	before := w.ours()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !hasMarkers(before[name]) || w.r.IntN(2) == 0 {
			continue
		}
		if earlier, known := w.oracle.unmarked[name]; known && w.r.IntN(2) == 0 {
			w.counts["abandon"]++
			w.put(name, earlier)
			w.say("the user abandons the conflict in %s: %q", name, earlier)
			return
		}
		w.resolve(name, before[name])
		return
	}
	after := w.change(before, "u")
	for name := range before {
		if hasMarkers(before[name]) && after[name] != before[name] {
			return // a change of half a conflict says nothing
		}
	}
	w.replace(before, after)
	w.oracle.edited(&w.oracle.user, before, after)
	w.say("the user %s", changed(before, after))
}

// merge has the user merge the branch, if git does: no file that it changes has uncommitted changes.
func (w *world) merge() {
	w.t.Helper()
	before := where(w.ours())
	if was := w.checkOut(w.branch); was != nil {
		after := where(w.ours())
		for line := range before { // a second merge removes what the user had taken back
			if after[line] == nil && w.retaken[line] {
				w.oracle.user[line] = true
			}
		}
		w.unmerged = was
		w.merges++
		w.merged(0, w.merges)
		w.counts["merge"]++
	}
}

// unmerge has the user take the merge back. Of what a sync has seen, that is an edit like any other.
func (w *world) unmerge() {
	w.t.Helper()
	before := w.ours()
	if w.checkOut(w.unmerged) == nil {
		return
	}
	w.unmerged = nil
	after := w.ours()
	seen := func(name string, _ string) bool {
		return slices.ContainsFunc(w.branched[name], branched.inFolder)
	}
	maps.DeleteFunc(before, seen)
	maps.DeleteFunc(after, seen)
	w.oracle.edited(&w.oracle.user, before, after)
	for line := range where(after) {
		if where(before)[line] == nil {
			delete(w.oracle.agent, line)
			w.retaken[line] = true
		}
	}
	w.merged(w.merges, 0)
	w.counts["unmerge"]++
}

func (w *world) merged(from, to int) {
	for _, all := range w.branched {
		for i := range all {
			if all[i].merged == from {
				all[i].merged = to
			}
		}
	}
}

// checkOut sets the user's commit, and returns the one before; nil if git refuses.
func (w *world) checkOut(to tree) (from tree) {
	w.t.Helper()
	before := w.ours()
	after := maps.Clone(before)
	for _, tr := range []tree{w.head, to} {
		for name := range tr {
			if w.head[name] == to[name] {
				continue
			}
			if before[name] != w.head[name] {
				return nil
			}
			if delete(after, name); to[name] != "" {
				after[name] = to[name]
			}
		}
	}
	w.replace(before, after)
	w.say("the user checks out, and the folder %s", changed(before, after))
	from, w.head = w.head, maps.Clone(to)
	return from
}

// resolve removes the markers, and some of the lines of one side.
func (w *world) resolve(name, text string) {
	w.t.Helper()
	before := w.ours()
	var out strings.Builder
	keep, in := w.r.IntN(2), 0
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "<<<<<<<"):
			in = 1
		case strings.HasPrefix(line, "=======") && in > 0:
			in = 2
		case strings.HasPrefix(line, ">>>>>>>"):
			in = 0
		case in != 1 || keep == 0 || w.r.IntN(2) == 0:
			out.WriteString(line)
		}
	}
	out.WriteString(w.line("u"))
	w.counts["resolve"]++
	w.put(name, out.String())
	w.oracle.resolved(name, text)
	w.oracle.edited(&w.oracle.user, before, w.ours())
	w.say("the user resolves %s: %q", name, out.String())
}

func (w *world) put(name, text string) {
	w.t.Helper()
	if err := os.RemoveAll(filepath.Join(w.folder(), name)); err != nil {
		w.t.Fatal(err)
	}
	tree{name: text}.write(w.t, w.folder())
}

func (w *world) replace(before, after tree) {
	w.t.Helper()
	for name := range before {
		if after[name] != before[name] {
			if err := os.Remove(filepath.Join(w.folder(), name)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for name, text := range after {
		if before[name] != text {
			w.put(name, text)
		}
	}
}

// change edits one file of a tree.
func (w *world) change(tr tree, by string) tree {
	out := maps.Clone(tr)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tr)), func(n string) bool { return n == ".gitignore" })
	fresh := []string{"new0", "d/new1", "out.o"}[w.r.IntN(3)]
	if len(names) == 0 {
		out[fresh] = w.line(by)
		return out
	}
	name := names[w.r.IntN(len(names))]
	text := tr[name]
	lines := slices.Collect(strings.Lines(strings.TrimPrefix(text, "l:")))
	if len(lines) == 0 {
		lines = []string{w.line(by)}
	}
	at := w.r.IntN(len(lines))
	switch n := w.r.IntN(12); {
	case n < 4:
		lines[at] = w.line(by)
	case n < 6:
		lines = slices.Insert(lines, at, w.line(by))
	case n == 6 && len(lines) > 1:
		lines = slices.Delete(lines, at, at+1)
	case n == 7:
		delete(out, name)
		return out
	case n == 8 && name != "kept.o":
		to := fmt.Sprintf("moved%d", w.r.IntN(3))
		if _, taken := out[to]; !taken {
			delete(out, name)
			out[to] = text
			w.oracle.moved(text)
		}
		return out
	case n == 9 && name != "kept.o":
		out[name] = "l:" + strings.TrimSuffix(w.line(by), "\n")
		return out
	case n == 10:
		if _, taken := out[fresh]; !taken {
			out[fresh] = w.line(by) + w.line(by)
		}
		return out
	}
	if strings.HasPrefix(text, "l:") {
		out[name] = "l:" + strings.TrimSuffix(w.line(by), "\n")
	} else {
		out[name] = strings.Join(lines, "")
	}
	return out
}
