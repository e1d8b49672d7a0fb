package edits

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRandomHistoriesComeWhole compares a branch with the workspace after random edits inside,
// committed or not, on side branches or not, that are brought several times: the branch has the
// same files, and each commit of the sandbox. SCRIPTS=200 runs more.
func TestRandomHistoriesComeWhole(t *testing.T) {
	t.Parallel()
	n := scripts / 2
	if all, err := strconv.Atoi(os.Getenv("SCRIPTS")); err == nil {
		n = all
	}
	commits := 0
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 24))
		base := randomBase(r)
		delete(base, "sub/.git")
		g := repo(t, base)
		copied := g.head()
		in := g.inside()
		rewrite := func() {
			now := script(r, load(t, in.dir), "theirs")
			entries, err := os.ReadDir(in.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Name() == ".git" {
					continue
				}
				if err := os.RemoveAll(filepath.Join(in.dir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
			now.write(t, in.dir)
		}
		home := base
		for round := range 3 {
			for i := range r.IntN(3) {
				rewrite()
				if r.IntN(4) == 0 {
					in.must("", "checkout", "-q", "--detach")
				}
				in.commit(fmt.Sprintf("%d of round %d", i, round), nil)
				commits++
			}
			if r.IntN(3) > 0 {
				rewrite()
			}
			work := load(t, in.dir)
			if _, err := g.bringHistory(in, copied, home); err != nil {
				t.Fatalf("seed %d, round %d: %v", seed, round, err)
			}
			home = work
			tip := "fix"
			if _, err := g.git("", "rev-parse", "-q", "--verify", "fix"); err != nil {
				tip = "main" // nothing new
			}
			g.must("", "-c", "core.symlinks=true", "checkout", "-q", "--detach", tip)
			wantTree(t, fmt.Sprintf("seed %d, round %d: the branch", seed, round), load(t, g.dir), work)
			g.must("", "checkout", "-q", "main")
			if in.head() != copied {
				g.must("", "merge-base", "--is-ancestor", in.head(), "fix")
			}
		}
		g.must("", "fsck", "--strict")
	}
	if commits < n {
		t.Errorf("only %d commits", commits)
	}
}

// TestNothingOfEitherSideIsLostOnABranch plays histories of a sandbox that edits, commits, amends
// and adds ignored files by force, of a user who edits the branch, merges into it and had
// uncommitted work when it was copied, who resolves conflicts on the branch, and of apply --branch with and without
// --squash. What must hold of files, commits and modes is in branchoracle_test.go; here, each line
// is written once, so what must hold is said of lines, and of nothing that the code knows.
// HISTORIES=10000 plays more, and HISTORY=7 begins at that one, or plays only that.
func TestNothingOfEitherSideIsLostOnABranch(t *testing.T) {
	first, n := 0, 20
	if one, err := strconv.Atoi(os.Getenv("HISTORY")); err == nil {
		first, n = one, one+1
	}
	if all, err := strconv.Atoi(os.Getenv("HISTORIES")); err == nil {
		n = all
	}
	counts := make(map[string]int)
	for seed := first; seed < n && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playBranch(t, uint64(seed), counts) })
	}
	t.Logf("%d histories: %v", n-first, counts)
	for _, what := range []string{"bring", "squash", "conflict", "commit", "amend", "force", "untrack", "chmod", "resolve", "branch", "merge", "rename", "drop", "apart", "land", "only"} {
		if n-first >= 20 && counts[what] < (n-first)/10 {
			t.Errorf("the histories have too little of %q", what)
		}
	}
}

// The same is true if the names of objects are longer.
func TestNothingIsLostOnABranchOfARepositoryWithSHA256(t *testing.T) {
	t.Setenv("GIT_DEFAULT_HASH", "sha256")
	for seed := range uint64(6) {
		playBranch(t, seed, make(map[string]int))
	}
}

// twigs is a repository with a branch fix, and a sandbox with a copy of it.
type twigs struct {
	t      *testing.T
	r      *rand.Rand
	counts map[string]int
	form   form
	// home is the user's work tree, desk another one in which the user works on the branch.
	home, desk, in repository
	copied         string
	// commits has the files of commits that were read.
	commits map[string]tree
	// start is what was copied, base what the branch has got since, or else the folder, and folder what
	// that has. brought are the files that the branch has got, and landed others that the folder has.
	start, base, folder tree
	brought, landed     map[string]bool
	// dropped are the files that the user has removed from the branch.
	dropped map[string]bool
	next    int
	// alone means that only the sandbox edits.
	alone bool
	// madeAnew are files of the copy that the sandbox has removed once.
	madeAnew map[string]bool
	// tracked are the files that a commit of the sandbox had, modesInside those whose modes it has
	// changed, and origins from which others it has renamed them. leftOut is the folder that the copy
	// left out, if it did.
	tracked, modesInside map[string]bool
	origins              map[string][]string
	leftOut              string
	// lost are the files of which the base notes that a branch has lost them because git stopped tracking
	// them inside, absent those that a commit of the sandbox has removed, and again those that a later one
	// has again.
	lost, absent, again map[string]bool
	// touched are the files that the user has changed, and mine the lines that the sandbox never had.
	touched, mine map[string]bool
	// open are the files of the last conflict, and last is one that the sandbox has changed last.
	open []string
	last string
	// cutInside and cutHome are the lines that the sandbox, and the user on the branch, have taken out.
	cutInside, cutHome map[string]bool
	log                []string
}

func playBranch(t *testing.T, seed uint64, counts map[string]int) {
	t.Helper()
	w := &twigs{t: t, r: rand.New(rand.NewPCG(seed, 25)), counts: counts, form: formOf(seed), alone: true, commits: make(map[string]tree), origins: make(map[string][]string)}
	for _, one := range []*map[string]bool{&w.cutInside, &w.cutHome, &w.madeAnew, &w.tracked, &w.modesInside, &w.touched, &w.mine, &w.brought, &w.landed, &w.dropped, &w.lost, &w.absent, &w.again} {
		*one = make(map[string]bool)
	}
	files := tree{".gitignore": "*.o\n"}
	for n := range 4 {
		files[fmt.Sprintf("%sf%d", []string{"", "d/"}[n%2], n)] = w.write("u", strings.Join([]string{w.line("b"), w.line("b"), w.line("b"), w.line("b"), w.line("b"), w.line("b")}, ""))
	}
	w.settle(files)
	tree{"kept.o": w.write("u", w.line("b"))}.write(t, w.home.dir)
	if w.r.IntN(2) == 0 { // not committed when it is copied
		w.rewrite(w.home, w.change(w.load(w.home), "u"))
		w.alone = false
	}
	w.in = w.home.inside()
	if w.form.name == "plain" || w.r.IntN(2) > 0 {
		w.in.config = "" // the user's settings do not come along
	}
	if w.r.IntN(3) == 0 { // left out of the copy
		if err := os.RemoveAll(filepath.Join(w.in.dir, "d")); err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasPrefix(name, "d/") })
		w.leftOut = "d/"
	}
	w.start = w.load(w.in)
	w.base, w.folder = maps.Clone(w.start), maps.Clone(w.start)
	w.touch(w.load(w.home), w.files(w.home, w.copied), plain) // what is not committed
	w.note()
	cut(w.cutInside, files, w.start) // a commit of the sandbox has what was not committed, too
	w.desk = repository{t, filepath.Join(t.TempDir(), "desk"), w.home.config}
	w.home.must("", "worktree", "add", "-q", "--detach", w.desk.dir)
	for range 14 {
		w.act()
		if t.Failed() {
			break
		}
	}
	w.bring(false)
	if tip := w.home.tipOf("fix"); tip != "" {
		if w.bring(false); w.home.tipOf("fix") != tip {
			t.Error("the branch has everything, and moves")
		}
	}
	w.home.must("", "fsck", "--strict")
	if t.Failed() {
		t.Errorf("history %d:\n%s", seed, strings.Join(w.log, "\n"))
	}
}

// settle makes the repository, with settings of the user and its own.
func (w *twigs) settle(files tree) {
	w.t.Helper()
	w.home = repo(w.t, nil, w.form.repository...)
	if settingsOfUser(w.t, w.form.user); w.form.name != "plain" {
		w.home.config = filepath.Join(os.Getenv("HOME"), ".gitconfig")
	}
	if w.form.attributes != "" {
		files[".gitattributes"] = w.form.attributes
	}
	files.write(w.t, w.home.dir)
	w.home.must("", "add", "-A")
	w.home.must("", "commit", "-q", "-m", "second")
	w.copied = w.home.head()
	if !w.form.modes {
		return
	}
	for name := range files {
		if err := os.Chmod(filepath.Join(w.home.dir, name), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
}

// write is a text as a side writes it.
func (w *twigs) write(by, text string) string {
	if n := len(w.form.work); by == "s" && n > 1 {
		return w.form.work[w.r.IntN(n)](text)
	}
	return w.form.work[0](text)
}

func (w *twigs) line(by string) string { w.next++; return fmt.Sprintf("%s%d\n", by, w.next) }

func (w *twigs) say(what, format string, args ...any) {
	w.counts[what]++
	w.log = append(w.log, what+" "+fmt.Sprintf(format, args...))
}

// load returns the files of a work tree.
func (w *twigs) load(g repository) tree {
	w.t.Helper()
	tr := load(w.t, g.dir)
	delete(tr, ".git") // of a work tree of its own
	return tr
}

// linesOf are the lines of a tree.
func linesOf(tr tree) map[string]bool {
	all := make(map[string]bool)
	for name, text := range tr {
		if strings.HasPrefix(name, ".git") {
			continue
		}
		for line := range strings.Lines(plain(text)) {
			all[line] = true
		}
	}
	return all
}

// cut notes the lines that an edit takes out, and those that it brings back.
func cut(noted map[string]bool, before, after tree) {
	was, is := linesOf(before), linesOf(after)
	for line := range was {
		if !is[line] {
			noted[line] = true
		}
	}
	for line := range is {
		delete(noted, line)
	}
}

// change edits a file of a tree.
func (w *twigs) change(tr tree, by string) tree {
	out := maps.Clone(tr)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tr)), func(name string) bool { return strings.HasPrefix(name, ".git") })
	if w.form.later != "" && w.r.IntN(10) == 0 {
		out[".gitattributes"] = w.form.later
		return out
	}
	fresh := fmt.Sprintf("%s%d", by, w.r.IntN(3))
	if len(names) == 0 || w.r.IntN(8) == 0 {
		out[fresh] = w.write(by, plain(out[fresh])+w.line(by))
		return out
	}
	name := names[w.r.IntN(len(names))]
	if by == "u" && slices.Contains(names, w.last) && w.r.IntN(2) == 0 {
		name = w.last
	}
	lines := slices.Collect(strings.Lines(plain(out[name])))
	at := w.r.IntN(len(lines))
	switch w.r.IntN(8) {
	case 0, 1, 2:
		lines[at] = w.line(by)
	case 3, 4:
		lines = slices.Insert(lines, at, w.line(by))
	case 5:
		if lines = slices.Delete(lines, at, at+1); len(lines) == 0 {
			delete(out, name)
			return out
		}
	case 6:
		delete(out, name)
		return out
	default:
		if to := fmt.Sprintf("moved%d", w.r.IntN(3)); out[to] == "" {
			delete(out, name)
			out[to] = w.write(by, strings.Join(lines, ""))
			return out
		}
	}
	out[name] = w.write(by, strings.Join(lines, ""))
	return out
}

// rewrite makes the files of a work tree those of a tree.
func (w *twigs) rewrite(g repository, to tree) {
	w.t.Helper()
	before := w.load(g)
	for name, text := range before {
		if to[name] != text {
			if err := os.Remove(filepath.Join(g.dir, name)); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for name, text := range to {
		if _, err := os.Lstat(filepath.Join(g.dir, name)); err != nil {
			if strings.HasPrefix(before[name], "x:") {
				text = "x:" + content(text)
			}
			tree{name: text}.write(w.t, g.dir)
		}
	}
}

func (w *twigs) act() {
	w.t.Helper()
	switch n := w.r.IntN(26); {
	case len(w.open) > 0 && n < 7:
		w.onBranch()
	case n > 20:
		w.meet(n - 21)
	case n < 5:
		before := w.load(w.in)
		after := w.change(before, "s")
		switch names := slices.Sorted(maps.Keys(w.start)); w.r.IntN(8) {
		case 0:
			after = maps.Clone(before)
			after["new.o"] = w.write("s", plain(after["new.o"])+w.line("s"))
		case 3: // what it may have committed
			after = maps.Clone(before)
			delete(after, w.last)
		case 1, 2: // as it was copied in
			after = maps.Clone(before)
			name := names[w.r.IntN(len(names))]
			after[name] = w.start[name]
		}
		w.inside(before, after)
	case n < 9:
		args := []string{"add", "-A"}
		if w.r.IntN(3) == 0 {
			args = append(args, "-f")
			w.say("force", "")
		}
		w.in.must("", args...)
		if w.form.later != "" && w.r.IntN(3) == 0 {
			if err := os.WriteFile(filepath.Join(w.in.dir, ".gitattributes"), []byte(w.form.later), 0o600); err != nil {
				w.t.Fatal(err)
			}
			w.in.must("", "add", "-A")
			w.in.must("", "add", "--renormalize", ".")
			w.say("renormalize", "")
		}
		w.commit(w.r.IntN(2) == 0)
	case n < 10:
		w.untrack()
	case n < 14:
		w.onBranch()
	case n < 15: // the folder's own branch goes on
		w.alone = false
		w.desk.must("", "checkout", "-q", "-f", "--detach", "main")
		before := w.load(w.desk)
		w.onDesk(before, w.change(before, "u"))
		w.desk.must("", "add", "-A")
		w.desk.must("", "commit", "-q", "--allow-empty", "-m", "main")
		w.moves("main")
		w.say("main", "goes on")
	default:
		w.bring(w.r.IntN(4) == 0)
	}
}

// inside makes the files of the sandbox others.
func (w *twigs) inside(before, after tree) {
	w.t.Helper()
	w.rewrite(w.in, after)
	cut(w.cutInside, before, after)
	w.rename(before, after)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			w.last = name
		}
	}
	w.chmod(w.in, w.modesInside)
	for name := range w.start {
		if after[name] == "" {
			w.madeAnew[name] = true
		}
	}
	w.say("edit", "inside: %s", changed(before, after))
}

// commit has the sandbox commit what it has added.
func (w *twigs) commit(amend bool) {
	w.t.Helper()
	commit := []string{"commit", "-q", "--allow-empty", "-m", "inside"}
	if amend && w.in.tipOf("main") != w.copied {
		commit = append(commit, "--amend")
		w.say("amend", "")
	}
	w.in.must("", commit...)
	w.note()
	w.say("commit", "inside")
}

// untrack has the sandbox keep a file that git does not track any more.
func (w *twigs) untrack() {
	w.t.Helper()
	work, tracked := w.load(w.in), w.files(w.in, w.in.tipOf("main"))
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(work)), func(name string) bool { return strings.HasPrefix(name, ".git") || tracked[name] == "" })
	if len(names) > 0 {
		w.untrackOne(work, names[w.r.IntN(len(names))])
	}
}

func (w *twigs) untrackOne(work tree, name string) {
	w.t.Helper()
	w.in.must("", "rm", "-q", "-f", "--cached", name)
	if w.r.IntN(2) == 0 {
		tree{".gitignore": work[".gitignore"] + "/" + name + "\n"}.write(w.t, w.in.dir)
		w.in.must("", "add", ".gitignore")
	}
	w.in.must("", "commit", "-q", "-m", "untrack")
	if w.r.IntN(2) == 0 {
		tree{name: w.write("s", plain(work[name])+w.line("s"))}.write(w.t, w.in.dir)
	}
	w.note()
	w.last = name
	w.say("untrack", "%s", name)
}

// note notes what the sandbox tracks.
func (w *twigs) note() {
	w.t.Helper()
	now := w.files(w.in, w.in.tipOf("main"))
	for name := range w.tracked {
		w.absent[name] = w.absent[name] || now[name] == ""
	}
	for name := range now {
		w.tracked[name], w.again[name] = true, w.again[name] || w.absent[name]
	}
}

// chmod changes the mode of a file.
func (w *twigs) chmod(g repository, noted map[string]bool) {
	w.t.Helper()
	all := w.load(g)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool { return strings.HasPrefix(name, ".git") })
	if w.form.modes || len(names) == 0 || w.r.IntN(6) > 0 {
		return
	}
	name := names[w.r.IntN(len(names))]
	mode := os.FileMode(0o755)
	if strings.HasPrefix(all[name], "x:") {
		mode = 0o644
	}
	if err := os.Chmod(filepath.Join(g.dir, name), mode); err != nil {
		w.t.Fatal(err)
	}
	noted[name] = true
	w.say("chmod", "%s %v", name, mode)
}

// onDesk edits the files of the desk.
func (w *twigs) onDesk(before, after tree) {
	w.t.Helper()
	w.rewrite(w.desk, after)
	w.chmod(w.desk, w.touched)
	for line := range linesOf(after) {
		if strings.HasPrefix(line, "u") && !linesOf(before)[line] && !linesOf(w.start)[line] {
			w.mine[line] = true
		}
	}
}

// tipOf is the commit of a branch, empty if there is none. It takes no process.
func (g repository) tipOf(name string) string {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, ".git/refs/heads", name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (w *twigs) exists() bool { return w.home.tipOf("fix") != "" }

// tip is what the branch is, or begins with.
func (w *twigs) tip() string { return cmp.Or(w.home.tipOf("fix"), w.home.tipOf("main")) }

// files returns the files of a commit.
func (w *twigs) files(g repository, commit string) tree {
	w.t.Helper()
	if w.commits[commit] == nil {
		w.commits[commit] = g.files(commit)
	}
	return w.commits[commit]
}

// onBranch is what the user does on the branch.
func (w *twigs) onBranch() {
	w.t.Helper()
	if !w.exists() && len(w.open) == 0 && w.r.IntN(3) > 0 {
		return
	}
	resolves, had := len(w.open) > 0, maps.Clone(w.cutHome)
	w.userEdits(w.r.IntN(4) == 0, func(before tree) tree {
		after := w.change(before, "u")
		if resolves { // the sandbox's version, by hand
			after = maps.Clone(before)
			for _, name := range w.open {
				if delete(after, name); w.load(w.in)[name] != "" {
					after[name] = w.load(w.in)[name]
				}
			}
			w.say("resolve", "%q", w.open)
		}
		return after
	})
	maps.DeleteFunc(w.cutHome, func(line string, _ bool) bool { // the sandbox has, and may bring it back
		return resolves && w.cutInside[line] && !had[line]
	})
}

// userEdits has the user edit the branch, or merge main into it.
func (w *twigs) userEdits(merge bool, edit func(before tree) tree) {
	w.t.Helper()
	w.alone = false
	w.desk.must("", "checkout", "-q", "-f", "--detach", w.tip())
	before := w.load(w.desk)
	if merge {
		if _, err := w.desk.git("", "merge", "-q", "-m", "merge", "main"); err != nil {
			w.desk.must("", "reset", "-q", "--hard")
			return
		}
		w.say("merge", "")
	} else {
		w.onDesk(before, edit(before))
		w.desk.must("", "add", "-A")
		w.desk.must("", "commit", "-q", "--allow-empty", "-m", "user")
	}
	after := w.load(w.desk)
	w.moves("fix")
	cut(w.cutHome, before, after)
	w.drop(before, after)
	w.say("branch", "%s", changed(before, after))
}

// status is what git says of the folder, but for filters that fail.
func (w *twigs) status() string {
	w.t.Helper()
	var out strings.Builder
	for line := range strings.Lines(w.home.must("", "status", "--porcelain")) {
		if !strings.HasPrefix(line, "error: ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// wholeInside reports whether a commit has all that the workspace has and git stores at home as
// inside. What was left out of the copy is missing inside.
func (w *twigs) wholeInside() bool {
	w.t.Helper()
	for name, text := range w.load(w.in) {
		if w.form.modes && strings.HasPrefix(text, "x:") && !strings.HasPrefix(w.base[name], "x:") {
			return false // git inside does not look at that
		}
	}
	return w.start["d/f1"] != "" && (w.form.user == "" || w.in.config == w.home.config) && w.in.must("", "status", "--porcelain") == ""
}

// bring plays agbox apply --branch fix, and says what is wrong with the branch then.
func (w *twigs) bring(squash bool) {
	w.t.Helper()
	work, inside := w.load(w.in), w.files(w.in, w.in.tipOf("main"))
	unseen := strings.Split(w.in.must("", "ls-files", "-z", "-o", "-i", "--exclude-standard"), "\x00")
	ignored := func(name string) bool { return slices.Contains(unseen, name) }
	now := maps.Clone(work)
	maps.DeleteFunc(now, func(name, _ string) bool { return ignored(name) && w.base[name] == "" })
	all := w.in.retracked(differences(w.t, w.base, now), w.base, w.lost)
	o := BranchOptions{Folder: w.home.dir, Branch: "fix", Message: "Work", Label: "sandbox", Filters: w.form.repository != nil && w.r.IntN(2) > 0}
	o.Untracked, o.Fresh = w.in.untracked(w.base, now, w.start)
	o.Copied, o.Untrack = w.copied, w.in.tipOf("main") != w.copied
	o.Lost = w.lost
	for _, c := range differences(w.t, w.start, now) {
		if w.base[c.Path] == now[c.Path] {
			o.AtHome = append(o.AtHome, c)
		}
	}
	if squash || w.in.tipOf("main") == w.copied {
		all = Renames(all)
	} else {
		o.History = w.in.history(w.copied, w.base)
		o.History.Brought = w.brought
		o.History.Copy, o.History.Apart = make(map[string]*File), make(map[string]bool)
		o.History.Excluded = func(name string) bool { return w.leftOut != "" && strings.HasPrefix(name, w.leftOut) }
		for name, text := range w.start {
			o.History.Copy[name] = version(text)
		}
		o.History.Home = func() (map[string]*File, error) { return w.in.history(w.copied, w.folder).Base, nil }
		for name := range work {
			o.History.Apart[name] = w.base[name] == "" && !slices.ContainsFunc(all, func(c Change) bool { return c.Path == name })
		}
	}
	status, tip, before := w.status(), w.tip(), w.files(w.home, w.tip())
	existed := w.exists()
	l := look{work: work, inside: inside, first: w.files(w.home, w.copied), ignored: make(map[string]bool), stopped: make(map[string]bool), tip: w.home.tipOf("fix"), commits: o.History != nil}
	for name := range work {
		l.ignored[name] = ignored(name)
		l.stopped[name] = w.tracked[name] && inside[name] == ""
	}
	main, began := w.home.tipOf("main"), tip
	out, err := Commit(w.t.Context(), all, o)
	if errors.As(err, new(*FilterError)) && w.form.repository != nil && !o.Filters {
		w.say("filter", "nobody agreed")
		if w.tip() != tip {
			w.t.Error("the branch has changed without the filter")
		}
		o.Filters = true
		out, err = Commit(w.t.Context(), all, o)
	}
	if err != nil {
		w.t.Errorf("bringing fails: %v", err)
		return
	}
	what := map[bool]string{true: "squash", false: "bring"}[squash]
	after := w.files(w.home, w.tip())
	if len(out.Commits) > 0 && !existed { // a new branch begins with the commits of the sandbox
		before, began = w.files(w.home, w.copied), w.copied
	}
	w.say(what, "%d commits: %s; conflicts %d, outside %v, at home %v", len(out.Commits), changed(before, after), (Applied{Outcomes: out.Outcomes}).Conflicts(), out.Outside, out.AtHome)
	if now := w.status(); now != status {
		w.t.Errorf("the status of the folder was %q and is %q", status, now)
	}
	if (Applied{Outcomes: out.Outcomes}).Conflicts() > 0 {
		w.counts["conflict"]++
		w.justified(l, out)
		w.open = nil
		for _, one := range out.Outcomes {
			if one.Conflict() {
				w.open = append(w.open, one.Path)
			}
		}
		if w.tip() != tip {
			w.t.Error("the branch has changed beside a conflict")
		}
		return
	}
	w.open = nil
	l.before, l.after, l.now, l.out = before, after, w.home.tipOf("fix"), out
	l.wereExecutable, l.areExecutable = strings.Fields(w.home.executables(began)), strings.Fields(w.home.executables(w.tip()))
	w.check(l, main)
	if o.History != nil && w.alone && w.wholeInside() {
		if _, err := w.home.git("", "merge-base", "--is-ancestor", tip, w.in.tipOf("main")); err == nil && w.tip() != w.in.tipOf("main") {
			w.t.Error("the sandbox has committed all that it has, and the branch has another commit")
		}
	}
	if w.form.stored != nil && (w.in.config == w.home.config || w.in.tipOf("main") == w.copied) {
		for name, text := range after {
			if !strings.HasPrefix(name, ".git") && text != before[name] && text != w.form.stored(plain(text)) {
				w.t.Errorf("git stores %s as %q", name, text)
			}
		}
	}
	made, first := make(map[string]bool), w.files(w.home, w.copied) // in new files, such as one that is called otherwise now
	for name, text := range work {
		if w.base[name] == "" || first[name] == "" || l.commits && w.again[name] { // git merges what a commit has again as new
			maps.Copy(made, linesOf(tree{name: text}))
		}
	}
	for _, c := range all {
		for _, name := range []string{c.Path, c.From} {
			if slices.Contains(out.Outside, name) {
				continue
			}
			delete(w.lost, name)
			w.brought[name] = true
			if delete(w.base, name); work[name] != "" && name == c.Path {
				w.base[name] = work[name]
			}
		}
	}
	for _, name := range out.Untracked {
		w.lost[name] = true
		delete(w.brought, name) // the folder's next version is the base
	}
	maps.DeleteFunc(now, func(name, _ string) bool {
		changed := slices.ContainsFunc(all, func(c Change) bool { return c.Path == name })
		return w.dropped[name] && w.brought[name] && !changed || l.stopped[name] || slices.Contains(out.Outside, name) || w.landed[name] && !l.committed(name) || slices.Contains(out.AtHome, name)
	})
	forced := make(map[string]bool) // git had nothing of the file that the sandbox has taken back to
	for name, text := range inside {
		if first[name] == "" && work[name] == w.start[name] || l.commits && w.landed[name] { // or the folder has what came after the commit
			maps.Copy(forced, linesOf(tree{name: text}))
		}
	}
	if w.form.modes && w.exists() {
		for name := range strings.FieldsSeq(w.home.executables("fix")) {
			if strings.HasPrefix(w.start[name], "x:") && !w.madeAnew[name] {
				w.t.Errorf("%s is executable on the branch, and nobody made it so", name)
			}
		}
	}
	stopped := make(map[string]bool)
	for name := range l.stopped {
		if l.stopped[name] {
			maps.Copy(stopped, linesOf(tree{name: before[name]}))
		}
		if l.stopped[name] || l.ignored[name] { // it has them there now
			maps.Copy(stopped, linesOf(tree{name: work[name]}))
		}
	}
	for name := range w.landed { // nor does the branch have what was renamed and then went to the folder
		maps.Copy(stopped, linesOf(tree{name: work[name]}))
	}
	for _, name := range out.Outside { // or was renamed to a file that git did not have when it was copied, and is named
		maps.Copy(stopped, linesOf(tree{name: work[name]}))
	}
	was, is, there, committed := linesOf(before), linesOf(after), linesOf(work), map[string]bool{}
	if !squash && w.in.tipOf("main") != w.copied {
		here := maps.Clone(inside)
		maps.DeleteFunc(here, func(name, _ string) bool { return work[name] == "" || slices.Contains(out.AtHome, name) })
		committed = linesOf(here) // also what was not committed when it was copied, but for what was taken back to that
		for name, text := range work {
			if w.start[name] == text && plain(inside[name]) != plain(text) {
				for line := range linesOf(tree{name: text}) {
					delete(committed, line)
				}
			}
		}
		for line := range linesOf(first) {
			delete(committed, line)
		}
	}
	for line := range was {
		if !is[line] && !w.cutInside[line] && !stopped[line] {
			w.t.Errorf("the branch has lost %q, which the sandbox has not taken out", line)
		}
	}
	for line := range is {
		switch {
		case !was[line] && !there[line] && !forced[line]:
			w.t.Errorf("the branch gets %q, which the sandbox does not have", line)
		case !was[line] && w.cutHome[line] && !made[line]:
			w.t.Errorf("the branch gets %q back, which the user has taken out", line)
		}
	}
	for name := range first {
		gone := inside[name] == "" && (work[name] == "" || o.Untracked[name] != nil) && (w.leftOut == "" || !strings.HasPrefix(name, w.leftOut))
		if o.History != nil && gone && after[name] != "" && (before[name] == "" || !existed) {
			w.t.Errorf("the branch gets %s back, which the commits of the sandbox have removed", name)
		}
		if gone && o.Untracked[name] != nil {
			for line := range linesOf(tree{name: after[name]}) {
				if linesOf(tree{name: work[name]})[line] && !was[line] && !committed[line] {
					w.t.Errorf("the branch gets %q of %s, which git does not track in the sandbox", line, name)
				}
			}
		}
	}
	maps.DeleteFunc(w.landed, func(name string, _ bool) bool {
		return plain(after[name]) == plain(work[name]) && (w.form.modes || strings.HasPrefix(work[name], "x:") == slices.Contains(l.areExecutable, name))
	})
	for line := range linesOf(now) {
		if (strings.HasPrefix(line, "s") || committed[line]) && !is[line] && !w.cutHome[line] {
			w.t.Errorf("the branch does not get %q", line)
		}
	}
}
