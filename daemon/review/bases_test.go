package review

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/workspace/archive"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder makes a folder with files by path. A name that ends in "@" is a link to its content.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		link := strings.HasSuffix(name, "@")
		name = filepath.Join(dir, strings.TrimSuffix(name, "@"))
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if link {
			err = errors.Join(err, os.Symlink(content, name))
		} else {
			err = errors.Join(err, os.WriteFile(name, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// recordBase packs a folder and returns its base.
func recordBase(t *testing.T, source, dir string) {
	t.Helper()
	fd, err := unix.Open(source, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := RecordBase(dir, "workspace")
	if err != nil {
		t.Fatal(err)
	}
	if err := archive.Pack(t.Context(), io.Discard, fd, "", archive.PackOptions{Name: "workspace", Record: r}); err != nil {
		r.Discard()
		t.Fatal(err)
	}
	if err := r.Finish(AboutBase{Source: source, Target: "/workspace", CopiedAt: 7, Foreign: []string{"cache"}}); err != nil {
		t.Fatal(err)
	}
}

// contents returns all files of a base by path.
func contents(t *testing.T, dir string, against ...agboxv1.WorkBase) map[string]string {
	t.Helper()
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, one := range against {
		b.Show(one, Commits{})
	}
	all := make(map[string]string)
	for _, f := range b.GetFiles() {
		var text bytes.Buffer
		if f.GetMode()&unix.S_IFMT == unix.S_IFLNK {
			all[string(f.GetPath())+"@"] = string(f.GetLink())
			continue
		}
		if err := b.Content(f, &text); err != nil {
			t.Errorf("%s: %v", f.GetPath(), err)
		}
		all[string(f.GetPath())] = text.String()
	}
	return all
}

func sameBase(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, content := range want {
		if got[name] != content {
			t.Errorf("%s has %d bytes that begin with %.20q", name, len(got[name]), got[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("the base has %s", name)
		}
	}
}

func TestABaseHasWhatWasCopiedByteForByte(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 3*blockSize/16) + "end"
	files := map[string]string{"a": "first", "dir/empty": "", "dir/large": large, "dir/link@": "../a", "z\xff": "no UTF-8"}
	source, dir := folder(t, files), filepath.Join(t.TempDir(), "base")
	if err := os.Link(filepath.Join(source, "a"), filepath.Join(source, "b")); err != nil {
		t.Fatal(err)
	}
	files["b"] = "first"
	if err := os.MkdirAll(filepath.Join(source, ".GIT/hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(source, ".GIT/hooks/pre-commit"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	recordBase(t, source, dir)
	sameBase(t, contents(t, dir), files)
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.GetSource() != source || b.GetTarget() != "/workspace" || b.GetCopiedAt() != 7 || len(b.GetForeign()) != 1 {
		t.Errorf("it is of %v", b.WorkspaceBase)
	}
	if b.File("dir/large").GetSize() != uint64(len(large)) || b.File("nothing") != nil {
		t.Errorf("files: %v", b.File("dir/large"))
	}
}

func TestAnIncompleteBaseIsNone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	r, err := RecordBase(dir, "workspace")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBase(dir); !errors.Is(err, ErrNoBase) {
		t.Errorf("while it is written: %v", err)
	}
	r.Discard()
	if _, err := OpenBase(dir); !errors.Is(err, ErrNoBase) {
		t.Errorf("discarded: %v", err)
	}
	recordBase(t, folder(t, map[string]string{"a": "1"}), dir)
	// A copy that begins again, as after a kill of the daemon, replaces the base.
	if r, err = RecordBase(dir, "workspace"); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBase(dir); !errors.Is(err, ErrNoBase) {
		t.Errorf("while it is written again: %v", err)
	}
	r.Discard()
}

func TestADamagedBaseIsNotBelieved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": strings.Repeat("a long text ", 100)}), dir)
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	raw, err := os.ReadFile(filepath.Join(dir, packName))
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 0x40
	if err := os.WriteFile(filepath.Join(dir, packName), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Content(b.File("a"), io.Discard); !errors.Is(err, errDamaged) {
		t.Errorf("it was read: %v", err)
	}
}

func TestAnAdvancedBaseHasTheNewFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "old", "b": "stays", "c": "goes"}), dir)
	earlier, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Close()
	change := func() *Advance {
		a, err := BeginAdvance(t.Context(), dir, false)
		if err != nil {
			t.Fatal(err)
		}
		a.Replace("a", false, true)
		a.Content([]byte("n"))
		a.Content([]byte("ew"))
		a.Replace("link", true, false)
		a.Content([]byte("../x"))
		a.Remove("c")
		return a
	}
	change().Discard()
	sameBase(t, contents(t, dir), map[string]string{"a": "old", "b": "stays", "c": "goes"})
	for range 2 { // a repeated call
		if err := change().Commit(); err != nil {
			t.Fatal(err)
		}
		sameBase(t, contents(t, dir), map[string]string{"a": "new", "b": "stays", "link@": "../x"})
	}
	var text bytes.Buffer
	if err := earlier.Content(earlier.File("a"), &text); err != nil || text.String() != "old" {
		t.Errorf("a reader of before reads %q: %v", text.String(), err)
	}
	now, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if now.File("a").GetMode()&0o111 == 0 || now.File("a").GetModified() != 0 {
		t.Errorf("a is %v", now.File("a"))
	}
	if _, err := BeginAdvance(t.Context(), t.TempDir(), false); !errors.Is(err, ErrNoBase) {
		t.Errorf("without a base: %v", err)
	}
}

// TestWhoWaitsForItsTurnToAdvanceABaseCanGiveUp: the first one may be a client that sends
// nothing.
func TestWhoWaitsForItsTurnToAdvanceABaseCanGiveUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "old"}), dir)
	first, err := BeginAdvance(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := BeginAdvance(ctx, dir, false)
		ended <- err
	}()
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that gave up got %v", err)
	}
	first.Discard()
	second, err := BeginAdvance(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	second.Discard()
}

// What went to a branch is not in the folder, and what was copied in stays known.
func TestABaseKnowsTheFolderTheBranchAndTheFirstCopy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "1", "b": "1", "c": "1"}), dir)
	advance := func(branch bool, change func(*Advance)) {
		t.Helper()
		a, err := BeginAdvance(t.Context(), dir, branch)
		if err != nil {
			t.Fatal(err)
		}
		change(a)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	put := func(a *Advance, path, text string) {
		a.Replace(path, false, false)
		a.Content([]byte(text))
	}
	want := func(folder, home map[string]string) {
		t.Helper()
		for against, want := range map[agboxv1.WorkBase]map[string]string{
			agboxv1.WorkBase_WORK_BASE_FOLDER: folder, agboxv1.WorkBase_WORK_BASE_UNSPECIFIED: home,
			agboxv1.WorkBase_WORK_BASE_FIRST_COPY: {"a": "1", "b": "1", "c": "1"},
		} {
			sameBase(t, contents(t, dir, against), want)
		}
	}
	advance(true, func(a *Advance) { put(a, "a", "2"); put(a, "new", "n"); a.Remove("b") })
	want(map[string]string{"a": "1", "b": "1", "c": "1"}, map[string]string{"a": "2", "c": "1", "new": "n"})
	advance(false, func(a *Advance) { put(a, "a", "3"); put(a, "other", "o"); a.Remove("c") })
	want(map[string]string{"a": "3", "b": "1", "other": "o"}, map[string]string{"a": "3", "new": "n", "other": "o"})
	advance(false, func(a *Advance) { put(a, "b", "4"); a.Remove("new"); put(a, "c", "5") })
	want(map[string]string{"a": "3", "b": "4", "c": "5", "other": "o"}, map[string]string{"a": "3", "b": "4", "c": "5", "other": "o"})
}

// Of the versions of a file that went to branches, the last one counts whose commit is there.
func TestABaseForgetsWhatALostCommitBrought(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "1", "b": "1"}), dir)
	bring := func(by, path, tip string, lost ...string) {
		t.Helper()
		a, err := BeginAdvance(t.Context(), dir, true)
		if err != nil {
			t.Fatal(err)
		}
		a.By(by, tip, lost)
		a.Brought("tip of " + by)
		a.Replace(path, false, false)
		a.Content([]byte("by " + by))
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(commits string, lost []string, a string, pending ...string) {
		t.Helper()
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		b.Show(agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{Lost: lost})
		var got []string
		for _, path := range []string{"a", "b"} {
			if _, onBranch := b.Folder(path); b.Lost(path) {
				got = append(got, path)
			} else if !onBranch || b.File(path) == nil {
				t.Errorf("%s is neither lost nor on a branch", path)
			}
		}
		var content bytes.Buffer
		err = b.Content(b.File("a"), &content)
		if all := strings.Join(b.BranchCommits(), " "); err != nil || all != commits || !slices.Equal(got, pending) || content.String() != a || b.GetBroughtBy() == "" {
			t.Errorf("with %v lost: commits %q, pending %q, a is %q: %v", lost, all, got, &content, err)
		}
	}
	bring("one", "a", "")
	bring("two", "b", "")
	want("one two", nil, "by one")
	want("one two", []string{"one"}, "1", "a")
	want("one two", []string{"two", "one"}, "1", "a", "b")
	bring("three", "a", "")
	want("one three two", []string{"one"}, "by three")
	want("one three two", []string{"three"}, "by one", "a")
	want("one three two", []string{"three", "one"}, "1", "a")
	bring("four", "a", "three", "one")
	want("four three two", []string{"three"}, "by four")
	want("four three two", []string{"four"}, "by three", "a")
	for _, by := range []string{"five", "five", "six"} { // five is repeated, and then its branch did not move
		commits := map[string]string{"five": "five four three two", "six": "four six three two"}[by]
		bring(by, "a", "four", map[string]string{"six": "five"}[by])
		want(commits, nil, "by "+by)
		want(commits, []string{by}, "by four", "a")
	}
	bring("seven", "a", "six")
	want("four seven six three two", []string{"seven"}, "by six", "a")
}

// That a branch lost a file, because git does not track it in the workspace, counts as long as its
// commit is there, and until the file goes to a branch or to the folder.
func TestABaseKnowsWhatABranchLostBecauseGitDoesNotTrackIt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "1", "b": "1", "c": "1"}), dir)
	advance := func(by string, change func(*Advance)) {
		t.Helper()
		a, err := BeginAdvance(t.Context(), dir, by != "")
		if err != nil {
			t.Fatal(err)
		}
		a.By(by, "", nil)
		change(a)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	put := func(path, text string) func(*Advance) {
		return func(a *Advance) {
			a.Replace(path, false, false)
			a.Content([]byte(text))
		}
	}
	untrack := func(names ...string) func(*Advance) {
		return func(a *Advance) {
			for _, name := range names {
				a.Untrack([][]byte{[]byte(name)})
			}
		}
	}
	want := func(want string, lost ...string) {
		t.Helper()
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		b.Show(agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{Lost: lost})
		got := ""
		for _, f := range b.GetFiles() {
			var text bytes.Buffer
			if err := b.Content(f, &text); err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprintf("%s=%s%s ", f.GetPath(), &text, map[bool]string{true: "!"}[f.GetUntracked()])
		}
		if got = strings.TrimSpace(got); got != want {
			t.Errorf("with %v lost, the base has %q, want %q", lost, got, want)
		}
	}
	advance("one", put("b", "2"))
	for range 2 { // a call that is repeated
		advance("two", untrack("a", "b", "none"))
		want("a=1! b=2! c=1")
		want("a=1 b=2 c=1", "two")
		want("a=1 b=1 c=1", "two", "one")
	}
	advance("three", func(a *Advance) { a.Remove("c") })
	advance("three", untrack("c"))
	want("a=1! b=2!")
	advance("three", put("a", "3"))
	want("a=3 b=2!")
	want("a=1! b=2! c=1", "three")
	advance("", put("b", "4"))
	want("a=3 b=4")
	// The sandbox's own work came to the folder after the branch had lost the file, and before.
	own := func(change func(*Advance)) {
		advance("", func(a *Advance) { a.FromSandbox(); change(a) })
	}
	advance("four", put("c", "5"))
	advance("five", untrack("c"))
	own(put("c", "6"))
	want("a=3 b=4 c=6")
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Show(agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, Commits{Branch: true})
	if f := b.File("c"); f.GetUntracked() || len(f.GetCommits()) > 0 {
		t.Errorf("the branch, which has lost it, has %v", f)
	}
	advance("six", put("c", "7"))
	own(put("c", "7"))
	advance("seven", untrack("c"))
	want("a=3 b=4 c=7!")
	// A branch that is merged has removed it from the folder.
	b, err = OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Show(agboxv1.WorkBase_WORK_BASE_FOLDER, Commits{Merged: []string{"six", "seven"}})
	if gone := b.Removed(); b.File("c") != nil || len(gone) != 1 || string(gone[0].GetPath()) != "c" {
		t.Errorf("the folder has %v, and removed are %v", b.File("c"), gone)
	}
	// What no branch has any more, and the folder has, is forgotten.
	own(func(a *Advance) { put("a", "8")(a); put("c", "8")(a) })
	a, err := BeginAdvance(t.Context(), dir, true)
	if err != nil {
		t.Fatal(err)
	}
	a.By("eight", "", []string{"three", "two", "one"})
	put("b", "9")(a)
	if err := a.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(notedIn(t, dir), " "); got != "eight" {
		t.Errorf("noted is %q", got)
	}
}

// The files of a base are most of it, and few calls need them.
func TestTheSummaryOfABaseIsAllButItsFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := BaseSummary(dir); !errors.Is(err, ErrNoBase) {
		t.Errorf("without a base: %v", err)
	}
	recordBase(t, folder(t, map[string]string{"a": "1", "b": "1", ".git/HEAD": strings.Repeat("1", 40)}), dir)
	for _, branch := range []bool{true, false} {
		a, err := BeginAdvance(t.Context(), dir, branch)
		if err != nil {
			t.Fatal(err)
		}
		if a.loaded != nil {
			t.Error("the files are read before anybody needs them")
		}
		a.By(strings.Repeat("2", 40), "", nil)
		a.Replace("a", false, false)
		a.Content([]byte("2"))
		if (a.loaded == nil) != branch {
			t.Errorf("for a branch %t: the files are read: %t", branch, a.loaded != nil)
		}
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		got, err := BaseSummary(dir)
		if b.Files = nil; err != nil || !proto.Equal(got, b.WorkspaceBase) {
			t.Errorf("%v, %v; want %v", got, err, b.WorkspaceBase)
		}
	}
	sameBase(t, contents(t, dir), map[string]string{"a": "2", "b": "1"})
}

// A call may look at the files and change none.
func TestABaseKeepsItsFilesIfOnlyItsCommitsChange(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "1", "b": "1"}), dir)
	for _, change := range []func(*Advance){
		func(a *Advance) { a.Replace("a", false, false); a.Content([]byte("2")) },
		func(a *Advance) { a.Moved([]string{"one"}); a.Untrack([][]byte{[]byte("none")}) },
	} {
		a, err := BeginAdvance(t.Context(), dir, true)
		if err != nil {
			t.Fatal(err)
		}
		a.By("one", "", nil)
		change(a)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	sameBase(t, contents(t, dir), map[string]string{"a": "1", "b": "1"}) // of the folder
}

// TestABaseKnowsWhatEachBranchHas also if the folder has a later version.
func TestABaseKnowsWhatEachBranchHas(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "copied"}), dir)
	bring := func(by, content string, elsewhere ...string) {
		t.Helper()
		a, err := BeginAdvance(t.Context(), dir, by != "")
		if err != nil {
			t.Fatal(err)
		}
		if a.By(by, "", nil, elsewhere...); content != "pushed" {
			a.FromSandbox()
		}
		a.Replace("a", false, false)
		a.Content([]byte(content))
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(content string, against agboxv1.WorkBase, c Commits) {
		t.Helper()
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		b.Show(against, c)
		var got bytes.Buffer
		if err := b.Content(b.File("a"), &got); err != nil || got.String() != content {
			t.Errorf("%+v has %q, and not %q: %v", c, &got, content, err)
		}
	}
	brought, home := agboxv1.WorkBase_WORK_BASE_UNSPECIFIED, agboxv1.WorkBase_WORK_BASE_FOLDER
	fix := Commits{Branch: true, Elsewhere: []string{"o1"}}
	other := Commits{Branch: true, Elsewhere: []string{"f1", "f2"}}
	bring("f1", "1")
	bring("o1", "2", "f1")
	bring("f2", "3", "o1")
	want("3", brought, Commits{})
	want("3", brought, fix)
	want("2", brought, other)
	want("1", brought, Commits{Branch: true, Lost: []string{"f2"}, Elsewhere: []string{"o1"}})
	want("copied", brought, Commits{Branch: true, Elsewhere: []string{"f1", "f2", "o1"}})
	want("copied", home, Commits{})
	want("1", home, Commits{Merged: []string{"f1"}})
	want("3", home, Commits{Merged: []string{"f1", "f2"}})
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Show(brought, Commits{Merged: []string{"f1", "f2"}})
	if there, _ := b.Folder("a"); there == nil || there != b.File("a") {
		t.Errorf("the folder has %v of what was merged", there)
	}
	bring("", "4")
	want("4", brought, Commits{})
	want("3", brought, fix)
	want("2", brought, other)
	want("4", home, Commits{Merged: []string{"f1", "f2"}})
	for n := range 2 * maxVersions { // of one branch not all are kept, so that others stay
		bring(fmt.Sprint("f", 3+n), fmt.Sprint("again ", n), "o1")
	}
	want("2", brought, Commits{Branch: true, Elsewhere: slices.DeleteFunc(notedIn(t, dir), func(c string) bool { return c == "o1" })})
	if n := len(notedIn(t, dir)); n != maxVersions {
		t.Errorf("%d commits are noted", n)
	}
	bring("", "pushed")
	want("pushed", brought, fix)
}

// notedIn returns the commits that a base has noted.
func notedIn(t *testing.T, dir string) []string {
	t.Helper()
	b, err := OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	return b.BranchCommits()
}

// A commit counts once a client says that a branch has moved to it, and as long as it matters.
func TestABaseKnowsToWhichCommitsBranchesHaveMoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "base")
	recordBase(t, folder(t, map[string]string{"a": "1"}), dir)
	advance := func(branch bool, change func(*Advance)) *Base {
		t.Helper()
		a, err := BeginAdvance(t.Context(), dir, branch)
		if err != nil {
			t.Fatal(err)
		}
		change(a)
		if err := a.Commit(); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		return b
	}
	index := func() os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, indexName))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	put := func(a *Advance) { a.Replace("a", false, false); a.Content([]byte("2")) }
	b := advance(true, func(a *Advance) { a.By("one", "", nil); put(a) })
	if got := b.Unmoved(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("a branch that is to move has not moved to %q", got)
	}
	was := index()
	for i := range 2 { // a repeated call writes nothing
		b = advance(false, func(a *Advance) { a.Moved([]string{"else", "one"}) })
		if now := index(); os.SameFile(now, was) != (i == 1) {
			t.Errorf("call %d writes the index: %t", i, i == 1)
		} else {
			was = now
		}
		if got := b.GetMoved(); !slices.Equal(got, []string{"one"}) || len(b.Unmoved()) > 0 {
			t.Errorf("branches have moved to %q, and not to %q", got, b.Unmoved())
		}
	}
	if b = advance(false, func(a *Advance) { a.FromSandbox(); put(a) }); !slices.Equal(b.GetMoved(), []string{"one"}) {
		t.Errorf("the folder has it too, and the branch has moved to %q", b.GetMoved())
	}
	if b = advance(false, func(a *Advance) { put(a) }); len(b.GetMoved()) > 0 {
		t.Errorf("it came from the folder, and %q is still noted", b.GetMoved())
	}
	advance(true, func(a *Advance) { a.By("gone", "", nil); put(a); a.Remove("b"); a.Moved([]string{"gone"}) })
	b = advance(true, func(a *Advance) { a.By("next", "", []string{"gone"}); put(a) })
	if got := b.Unmoved(); !slices.Equal(got, []string{"gone", "next"}) {
		t.Errorf("a branch is gone, and of %q none has moved", got)
	}
}

func TestABaseKnowsTheCommitThatWasCopied(t *testing.T) {
	one, two, three := strings.Repeat("1a", 20), strings.Repeat("2b", 32), strings.Repeat("3c", 20)
	for name, files := range map[string]map[string]string{
		one:   {".git/HEAD": "ref: refs/heads/a/b\n", ".git/refs/heads/a/b": one + "\n", ".git/packed-refs": two + " refs/heads/a/b\n"},
		two:   {".git/HEAD": "ref: refs/heads/main\n", ".git/packed-refs": "# pack-refs\n" + one + " refs/heads/other\n" + two + " refs/heads/main\n"},
		three: {".git/HEAD": "ref: refs/heads/alias\n", ".git/refs/heads/alias": "ref: refs/heads/main\n", ".git/refs/heads/main": three + "\n"},
		"":    {".git/HEAD": "ref: refs/heads/unborn\n", ".git/packed-refs": one + " refs/heads/other\n", "sub/.git/HEAD": one + "\n"},
	} {
		dir := filepath.Join(t.TempDir(), "base")
		recordBase(t, folder(t, files), dir)
		b, err := OpenBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		all := strings.Join(slices.Sorted(maps.Values(files)), " ")
		for _, commit := range []string{one, two, three} {
			if slices.Contains(b.GetHome(), commit) != strings.Contains(all, commit) {
				t.Errorf("references named %q, and the base has %q", all, b.GetHome())
			}
		}
		if b.GetHead() != name {
			t.Errorf("the commit is %q, not %q", b.GetHead(), name)
		}
	}
}

func TestABaseStaysAsItWasIfTheDiskIsFull(t *testing.T) {
	source, dir := folder(t, map[string]string{"a": "1"}), filepath.Join(t.TempDir(), "base")
	recordBase(t, source, dir)
	index := filepath.Join(dir, indexName)
	if err := os.Symlink("/dev/full", index+".new"); err != nil {
		t.Fatal(err)
	}
	a, err := BeginAdvance(t.Context(), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	a.Replace("a", false, false)
	a.Content([]byte("2"))
	if err := a.Commit(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Commit returned %v", err)
	}
	if now, err := os.Lstat(index); err != nil || !now.Mode().IsRegular() {
		t.Fatalf("the index is %v, %v", now, err)
	}
	sameBase(t, contents(t, dir), map[string]string{"a": "1"})
	if a, err = BeginAdvance(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	a.Replace("a", false, false)
	a.Content([]byte("3"))
	if err := a.Commit(); err != nil {
		t.Error(err)
	}
	sameBase(t, contents(t, dir), map[string]string{"a": "3"})
}
