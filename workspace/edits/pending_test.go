package edits

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/internal/paths"
)

// conflict is a folder with a conflict in f, and a file o that the user has not touched.
type conflict struct {
	t            *testing.T
	dir          string
	base, theirs tree
	o            ApplyOptions
}

// marks is f with a conflict.
const marks = "<<<<<<< folder\nours\n=======\ntheirs\n>>>>>>> sandbox\n"

func newConflict(t *testing.T) *conflict {
	t.Helper()
	c := &conflict{t: t, dir: t.TempDir(), base: tree{"f": "base\n", "o": "1\n"}, theirs: tree{"f": "theirs\n", "o": "2\n"}}
	c.o = ApplyOptions{Folder: c.dir, Data: t.TempDir(), Sandbox: "s", Label: "sandbox", Advance: advance(t, c.base)}
	c.has("ours\n")
	tree{"o": "1\n"}.write(t, c.dir)
	if out := c.apply(c.o); out.Conflicts() != 1 {
		t.Fatalf("outcome %+v", out)
	}
	c.want(marks, "base\n")
	return c
}

// has gives the folder a version of f.
func (c *conflict) has(text string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, "f"), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// apply is called again when the base has advanced, as agbox does.
func (c *conflict) apply(o ApplyOptions) Applied {
	c.t.Helper()
	var resolved []string
	for {
		out, err := Apply(c.t.Context(), changes(c.t, c.base, c.theirs), o)
		if err != nil {
			c.t.Fatal(err)
		}
		resolved = append(resolved, out.Resolved...)
		if !out.Again && !out.Finished {
			out.Resolved = resolved
			return out
		}
	}
}

// want checks f in the folder and in the base. o was brought without a conflict.
func (c *conflict) want(folder, base string) {
	c.t.Helper()
	wantTree(c.t, "the folder", load(c.t, c.dir), tree{"f": folder, "o": "2\n"})
	wantTree(c.t, "the base", c.base, tree{"f": base, "o": "2\n"})
}

func (c *conflict) forgotten() {
	c.t.Helper()
	if left, err := Pending(paths.RecordsIn(c.o.Data, c.o.Sandbox)); len(left) > 0 || err != nil {
		c.t.Errorf("%q are pending, %v", left, err)
	}
	if left := besides(c.t, c.o.Data); len(left) > 0 {
		c.t.Errorf("%v is left", left)
	}
}

func TestAConflictThatIsAbandonedComesAgain(t *testing.T) {
	for _, back := range []string{"ours\n", "base\n"} { // as it was, or as git has it
		c := newConflict(t)
		c.has(back)
		out := c.apply(c.o)
		if len(out.Resolved) > 0 || len(out.Outcomes) != 1 {
			t.Errorf("after %q: %+v", back, out)
		}
		if back == "base\n" {
			c.want("theirs\n", "theirs\n")
			c.forgotten()
		} else {
			c.want(marks, "base\n")
		}
	}
}

func TestAConflictStaysUntilItIsResolved(t *testing.T) {
	c := newConflict(t)
	for _, text := range []string{marks, marks + "more\n", "ours\ntheirs\n>>>>>>> sandbox\r\n"} {
		c.has(text)
		for range 2 {
			if out := c.apply(c.o); out.Conflicts() != 1 || out.Changed {
				t.Errorf("with %q: %+v", text, out)
			}
			c.want(text, "base\n")
		}
	}
	c.has("both: ours\ntheirs\n")
	check := c.o
	check.Check = true
	if out := c.apply(check); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("a check of a resolved conflict: %+v", out)
	}
	c.want("both: ours\ntheirs\n", "base\n")
	if out := c.apply(c.o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("a resolved conflict: %+v", out)
	}
	c.want("both: ours\ntheirs\n", "theirs\n")
	c.forgotten()
}

// Whoever puts the file back and goes on looks like somebody who has written a third version.
func TestAFileWithNothingOfTheSandboxIsNotResolved(t *testing.T) {
	for _, again := range []bool{true, false} {
		c := newConflict(t)
		c.has("ours and more\n")
		if out := c.apply(c.o); out.Conflicts() != 1 || out.Changed {
			t.Errorf("outcome %+v", out)
		}
		c.want("ours and more\n", "base\n")
		o := c.o
		if o.Again = again; again {
			c.apply(o)
			c.want("<<<<<<< folder\nours and more\n=======\ntheirs\n>>>>>>> sandbox\n", "base\n")
			continue
		}
		o.Continue = true
		c.apply(o)
		c.want("ours and more\n", "theirs\n")
		c.forgotten()
	}
}

// What the sandbox changes after a conflict is merged with what it was resolved to.
func TestAResolvedConflictIsTheBaseOfTheNextMerge(t *testing.T) {
	const rest = "2\n3\n4\n"
	c := newConflict(t)
	c.theirs["f"] = "theirs\n" + rest
	c.has("ours\n")
	c.apply(c.o)
	c.has("ours\ntheirs\n" + rest)
	c.theirs["f"] += "5\n" // before the next call
	if out := c.apply(c.o); out.Conflicts() != 0 {
		t.Errorf("outcome %+v", out)
	}
	c.want("ours\ntheirs\n"+rest+"5\n", "theirs\n"+rest+"5\n")
}

func TestAbortPutsBackWhatAConflictChanged(t *testing.T) {
	c := newConflict(t)
	o := c.o
	o.Abort = true
	out := c.apply(o)
	if len(out.Outcomes) != 1 || out.Conflicts() != 0 || !out.Changed {
		t.Errorf("outcome %+v", out)
	}
	c.want("ours\n", "base\n")
	c.forgotten()
	// What the user has changed since stays.
	c.apply(c.o)
	c.has(marks + "of the user\n")
	if out := c.apply(o); out.Conflicts() != 1 || out.Changed {
		t.Errorf("outcome %+v", out)
	}
	c.want(marks+"of the user\n", "base\n")
}

func TestAgainBringsAConflictAnew(t *testing.T) {
	c := newConflict(t)
	c.theirs["f"] = "later\n"
	o := c.o
	o.Again = true
	if out := c.apply(o); out.Conflicts() != 1 {
		t.Errorf("outcome %+v", out)
	}
	c.want("<<<<<<< folder\nours\n=======\nlater\n>>>>>>> sandbox\n", "base\n")
}

func TestContinueKeepsWhatTheFolderHas(t *testing.T) {
	c := newConflict(t)
	c.base["bin"], c.theirs["bin"] = "\x000", "\x001"
	tree{"bin": "\x002"}.write(t, c.dir)
	c.apply(c.o)
	c.theirs["new"] = "stays for the next call\n"
	o := c.o
	o.Continue = true
	if out := c.apply(o); out.Conflicts() != 1 || !slices.Equal(out.Resolved, []string{"bin"}) {
		t.Errorf("with markers: %+v", out)
	}
	c.has("third\n")
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("without markers: %+v", out)
	}
	wantTree(t, "the folder", load(t, c.dir), tree{"f": "third\n", "o": "2\n", "bin": "\x002"})
	want := maps.Clone(c.theirs)
	delete(want, "new")
	wantTree(t, "the base", c.base, want)
	c.forgotten()
}

// Continue is about conflicts that were shown, in the version that was.
func TestContinueLeavesWhatWasNotShown(t *testing.T) {
	c := newConflict(t)
	c.base["bin"], c.theirs["bin"] = "\x000", "\x001"
	c.base["gone"], c.theirs["gone"] = "a\n", "b\n"
	tree{"bin": "\x002", "f": "third\n"}.write(t, c.dir)
	before := maps.Clone(c.base)
	o := c.o
	o.Continue = true
	for _, later := range []tree{{}, {"bin": "\x003", "gone": "c\n"}} {
		maps.Copy(c.theirs, later)
		if out := c.apply(o); out.Conflicts() != 2 {
			t.Errorf("with %q: %+v", later, out)
		}
		before["f"] = "theirs\n"
		wantTree(t, "the base", c.base, before)
	}
	o.Paths = []string{"bin"}
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"bin"}) {
		t.Errorf("one that was shown: %+v", out)
	}
	o.Paths = nil
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"gone"}) {
		t.Errorf("the other: %+v", out)
	}
	wantTree(t, "the base", c.base, c.theirs)
	wantTree(t, "the folder", load(t, c.dir), tree{"f": "third\n", "o": "2\n", "bin": "\x002"})
	c.forgotten()
}

// What was shown is the whole change: where the file came from, and what it was before.
func TestContinueKnowsAChangeByBothSides(t *testing.T) {
	for what, tt := range map[string]struct{ base, first, folder, then, thenBase, later tree }{
		"a copy that became a rename":       {base: tree{"a": "\x00X"}, first: tree{"a": "\x00X", "p": "\x00X"}, folder: tree{"a": "\x00X", "p": "\x00mine"}, later: tree{"p": "\x00X"}},
		"a removal of a version since then": {base: tree{"x": "1\n"}, first: tree{}, folder: tree{"x": "u\n"}, thenBase: tree{"x": "u\n"}, then: tree{"x": "v\n"}, later: tree{}},
	} {
		c := &conflict{t: t, dir: t.TempDir(), base: tt.base, theirs: tt.first}
		c.o = ApplyOptions{Folder: c.dir, Data: t.TempDir(), Sandbox: "s", Label: "sandbox", Advance: advance(t, c.base)}
		tt.folder.write(t, c.dir)
		apply := func(with bool) Applied {
			t.Helper()
			c.o.Continue = with
			out, err := Apply(t.Context(), Renames(changes(t, c.base, c.theirs)), c.o)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		if out := apply(false); out.Conflicts() != 1 {
			t.Errorf("%s: %+v", what, out)
		}
		maps.Copy(c.base, tt.thenBase)
		tt.then.write(t, c.dir)
		c.theirs = tt.later
		before := maps.Clone(c.base)
		if out := apply(true); out.Conflicts() != 1 || len(out.Resolved) > 0 {
			t.Errorf("%s, not shown: %+v", what, out)
		}
		wantTree(t, "the base", c.base, before)
		if out := apply(true); out.Conflicts() != 0 || len(out.Resolved) != 1 {
			t.Errorf("%s, shown: %+v", what, out)
		}
		wantTree(t, "the base", c.base, c.theirs)
	}
}

// A call without some of the changes forgets nothing about them.
func TestContinueKnowsWhatALaterCallHasLeftOut(t *testing.T) {
	c := newConflict(t)
	c.has("ours\ntheirs\n")
	c.apply(c.o)
	c.base["bin"], c.theirs["bin"] = "\x000", "\x001"
	tree{"bin": "\x002"}.write(t, c.dir)
	c.apply(c.o)
	c.o.Without = map[string]bool{"bin": true}
	c.apply(c.o)
	c.o.Without, c.o.Continue = nil, true
	if out := c.apply(c.o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"bin"}) {
		t.Errorf("outcome %+v", out)
	}
	c.forgotten()
}

func TestContinueNamesLinesThatWereNotBrought(t *testing.T) {
	c := newConflict(t)
	c.has("ours\n")
	o := c.o
	o.Abort = true
	c.apply(o)
	o.Abort, o.Continue = false, true
	for range 2 {
		if out := c.apply(o); out.Conflicts() != 1 || len(out.Resolved) > 0 || out.Changed {
			t.Errorf("outcome %+v", out)
		}
	}
}

// A sandbox takes its change back, and the folder has the markers still.
func TestMarkersAreNamedAlsoWithoutAChange(t *testing.T) {
	c := newConflict(t)
	c.theirs["f"] = "base\n"
	if out := c.apply(c.o); out.Conflicts() != 1 || out.Changed {
		t.Errorf("outcome %+v", out)
	}
	c.want(marks, "base\n")
	o := c.o
	o.Again = true
	if out := c.apply(o); out.Conflicts() != 0 || len(out.Outcomes) != 1 || !out.Changed {
		t.Errorf("outcome of Again: %+v", out)
	}
	c.want("ours\n", "base\n")
	c.forgotten()
}

// Nobody has the sandbox's version any more, so it must not become the base.
func TestContinueOfAChangeThatWasTakenBack(t *testing.T) {
	c := newConflict(t)
	c.theirs["f"] = "base\n"
	c.has("ours\n")
	o := c.o
	o.Continue = true
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("outcome %+v", out)
	}
	c.want("ours\n", "base\n")
	c.forgotten()
	if out := c.apply(c.o); out.Conflicts() != 0 || out.Changed {
		t.Errorf("the next call: %+v", out)
	}
}

// A file is out of reach for a while, and the sandbox has taken its change back: the way back from the
// markers stays.
func TestAConflictOutOfReachStays(t *testing.T) {
	c := newConflict(t)
	c.base["d/f"], c.theirs["d/f"] = "base\n", "theirs\n"
	tree{"d/f": "ours\n", "f": "theirs\n"}.write(t, c.dir)
	c.apply(c.o)
	c.theirs["d/f"] = "base\n"
	away := filepath.Join(t.TempDir(), "d")
	if err := errors.Join(os.Rename(filepath.Join(c.dir, "d"), away), os.Symlink(away, filepath.Join(c.dir, "d"))); err != nil {
		t.Fatal(err)
	}
	if out := c.apply(c.o); out.Conflicts() != 1 {
		t.Errorf("out of reach: %+v", out)
	}
	if err := errors.Join(os.Remove(filepath.Join(c.dir, "d")), os.Rename(away, filepath.Join(c.dir, "d"))); err != nil {
		t.Fatal(err)
	}
	c.o.Abort = true
	c.apply(c.o)
	wantTree(t, "the folder", load(t, c.dir), tree{"f": "theirs\n", "o": "2\n", "d/f": "ours\n"})
}

// A call about other files leaves a conflict as it is.
func TestACallAboutOtherFilesForgetsNoConflict(t *testing.T) {
	c := newConflict(t)
	c.has("ours\n")
	o := c.o
	o.Paths = []string{"o"}
	c.apply(o)
	o.Continue = true
	c.apply(o)
	o.Paths = []string{"f"}
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("outcome %+v", out)
	}
	c.want("ours\n", "theirs\n")
}

// Whoever keeps a folder in step with its sandbox can take the own version, too.
func TestKeepingInStepLeavesTheOwnVersionToContinue(t *testing.T) {
	c := newConflict(t)
	c.has("ours\n")
	settled, err := Settle(c.o, changes(t, c.base, c.theirs))
	if err != nil || settled.Again || settled.Open["f"] == "" {
		t.Errorf("settled as %+v, %v", settled, err)
	}
	o := c.o
	o.Continue = true
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("outcome %+v", out)
	}
	c.want("ours\n", "theirs\n")

	c = newConflict(t)
	c.has("base\n") // as git has it: the change comes again
	if settled, err = Settle(c.o, changes(t, c.base, c.theirs)); err != nil || len(settled.Open) > 0 {
		t.Errorf("with the copied version: %+v, %v", settled, err)
	}
	c.forgotten()
}

// A change that no list shows, because the file is ignored, is not taken back.
func TestAChangeThatIsNotListedIsNotTakenBack(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"ours\n", "third\n"} {
		for what, before := range map[string]func(o ApplyOptions, listed []Change) error{
			"at once": func(ApplyOptions, []Change) error { return nil },
			"after keeping in step": func(o ApplyOptions, listed []Change) error {
				_, err := Settle(o, listed)
				return err
			},
			"after a call": func(o ApplyOptions, listed []Change) error {
				_, err := Apply(t.Context(), listed, o)
				return err
			},
		} {
			c := newConflict(t)
			c.has(own)
			listed := changes(t, c.base, tree{"f": "base\n", "o": "2\n"})
			o := c.o
			o.Hidden = func(path string) (bool, error) { return path == "f", nil }
			if err := before(o, listed); err != nil {
				t.Fatal(err)
			}
			o.Continue = true
			if out, err := Apply(t.Context(), listed, o); err != nil || !slices.Equal(out.Resolved, []string{"f"}) {
				t.Errorf("%s: outcome %+v, %v", what, out, err)
			}
			c.want(own, "theirs\n")
			c.forgotten()
		}
	}
}

// A call that brings no markers leaves the own version to --continue.
func TestTheOwnVersionStaysWhereNoMarkersCome(t *testing.T) {
	for what, o := range map[string]ApplyOptions{"no merge": {NoMerge: true}, "left out": {Without: map[string]bool{"f": true}}} {
		c := newConflict(t)
		c.has("ours\n")
		o.Folder, o.Data, o.Sandbox, o.Label, o.Advance = c.dir, c.o.Data, c.o.Sandbox, c.o.Label, c.o.Advance
		c.apply(o)
		c.o.Continue = true
		if out := c.apply(c.o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
			t.Errorf("%s: outcome %+v", what, out)
		}
		c.want("ours\n", "theirs\n")
	}
}

// The sandbox gets the version that the folder has: nothing is left to resolve.
func TestAConflictEndsIfBothSidesAreEqual(t *testing.T) {
	for _, text := range []string{"ours\n", "third\n"} {
		c := newConflict(t)
		c.has(text)
		c.theirs["f"] = text
		if settled, err := Settle(c.o, changes(t, c.base, c.theirs)); err != nil || len(settled.Open) > 0 {
			t.Errorf("with %q: settled as %+v, %v", text, settled, err)
		}
		if out := c.apply(c.o); out.Conflicts() > 0 {
			t.Errorf("with %q: outcome %+v", text, out)
		}
		c.want(text, text)
		c.forgotten()
	}
}

// The sandbox takes its change back after the user has taken it: the folder's version is the newer one.
func TestAResolvedConflictOutlivesTheChange(t *testing.T) {
	for _, text := range []string{"theirs\n", "ours\ntheirs\n"} {
		c := newConflict(t)
		c.has(text)
		c.theirs["f"] = "base\n"
		if out := c.apply(c.o); out.Conflicts() > 0 || !slices.Equal(out.Resolved, []string{"f"}) {
			t.Errorf("with %q: outcome %+v", text, out)
		}
		c.want(text, "base\n")
		c.forgotten()
	}
}

// A file that is renamed from or to one with an open conflict stays whole.
func TestARenameMeetsAnOpenConflict(t *testing.T) {
	t.Parallel()
	const text, mine = "1\n2\n3\n", "1\n2\n3\nuser\n"
	over := func(c *conflict) {
		c.base["src/a"], c.theirs["src/a"], c.theirs["lib/p"] = text, text, "theirs\n"
		tree{"src/a": text, "lib/p": "ours\n"}.write(t, c.dir)
		c.apply(c.o)
		if err := os.Remove(filepath.Join(c.dir, "lib/p")); err != nil {
			t.Fatal(err)
		}
		tree{"src/a": mine}.write(t, c.dir)
		delete(c.theirs, "src/a")
		c.theirs["lib/p"] = text
	}
	for what, play := range map[string]func(c *conflict) (want tree){
		"to its path, by a call about the source": func(c *conflict) tree {
			over(c)
			c.o.Paths = []string{"src"}
			return tree{"f": marks, "o": "2\n", "src/a": mine}
		},
		"to its path, where a folder is": func(c *conflict) tree {
			over(c)
			if err := os.Mkdir(filepath.Join(c.dir, "lib/p"), 0o755); err != nil {
				t.Fatal(err)
			}
			return tree{"f": marks, "o": "2\n", "src/a": mine}
		},
		"from its path, with markers": func(c *conflict) tree {
			delete(c.theirs, "f")
			c.theirs["p"] = "base\n"
			return tree{"f": marks, "o": "2\n"}
		},
		"from its path, by a call about the target": func(c *conflict) tree {
			c.has("ours\n")
			delete(c.theirs, "f")
			c.theirs["p"] = "base\n"
			c.o.Paths = []string{"p"}
			return tree{"f": "ours\n", "o": "2\n"}
		},
	} {
		c := newConflict(t)
		want := play(c)
		for range 2 {
			out, err := Apply(t.Context(), Renames(changes(t, c.base, c.theirs)), c.o)
			if err != nil || out.Conflicts() == 0 {
				t.Errorf("%s: outcome %+v, %v", what, out, err)
			}
			wantTree(t, what, load(t, c.dir), want)
		}
	}
}

// A conflict whose file is out of reach says so, and ends if the user says so.
func TestContinueEndsAConflictOutOfReach(t *testing.T) {
	c := newConflict(t)
	f := filepath.Join(c.dir, "f")
	if err := errors.Join(os.Remove(f), os.Mkdir(f, 0o755)); err != nil {
		t.Fatal(err)
	}
	out := c.apply(c.o)
	if out.Conflicts() != 1 || !strings.Contains(out.Outcomes[0].Why, "in the place of its file") {
		t.Errorf("outcome %+v", out)
	}
	o := c.o
	o.Continue = true
	if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
		t.Errorf("outcome %+v", out)
	}
	wantTree(t, "the base", c.base, tree{"f": "theirs\n", "o": "2\n"})
	c.forgotten()
}

// Who takes the own version has a file that looks as if it had been put back to be merged later.
func TestContinueKeepsTheOwnVersion(t *testing.T) {
	for what, own := range map[string]string{"as it was before the conflict": "ours\n", "as it was when it was copied": "base\n"} {
		c := newConflict(t)
		c.has(own)
		o := c.o
		o.Continue = true
		if out := c.apply(o); out.Conflicts() != 0 || !slices.Equal(out.Resolved, []string{"f"}) {
			t.Errorf("%s: %+v", what, out)
		}
		c.want(own, "theirs\n")
		c.forgotten()
		if out := c.apply(c.o); out.Conflicts() != 0 || out.Changed {
			t.Errorf("%s, the next call: %+v", what, out)
		}
		c.want(own, "theirs\n")
	}
}

// A kill at any change while a conflict is put back, or resolved, leaves it so that the next
// call does the same.
func TestAKillWhileAConflictEndsLosesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		prepare      func(*conflict)
		folder, base string
	}{
		"abort":    {func(c *conflict) { c.o.Abort = true }, "ours\n", "base\n"},
		"resolved": {func(c *conflict) { c.has("ours\ntheirs\n") }, "ours\ntheirs\n", "theirs\n"},
	} {
		for n := 0; ; n++ {
			c := newConflict(t)
			end.prepare(c)
			at := c.killed(n)
			c.apply(c.o)
			c.want(end.folder, end.base)
			c.forgotten()
			if at == "" {
				break
			}
			if n > 100 {
				t.Fatalf("%s: no end", name)
			}
		}
	}
}

// killed applies until the nth change of the file system.
func (c *conflict) killed(n int) (at string) {
	c.t.Helper()
	defer func() {
		if k, ok := recover().(killed); ok {
			at = string(k)
		}
	}()
	o := c.o
	o.hook = func(what string) {
		if n--; n < 0 {
			panic(killed(what))
		}
	}
	c.apply(o)
	return ""
}
