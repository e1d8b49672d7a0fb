package edits

import "testing"

// What came to a branch without the commits of the sandbox, and the user has changed there, a
// commit of the same does not bring again.
func TestACommitOfWhatTheBranchHadTurnsNothingBack(t *testing.T) {
	base := tree{"a": "1\n2\n3\n4\n5\n", "gone": "g\n"}
	for _, more := range []bool{false, true} {
		g := repo(t, base)
		copied, in := g.head(), g.inside()
		in.commit("one", tree{"a": "1\ntheirs\n2\n3\n4\n5\n", "gone": ""})
		theirs := load(t, in.dir)
		g.mustBranch(base, theirs)
		g.must("", "checkout", "-q", "fix")
		g.commit("mine", base) // as it was
		g.must("", "checkout", "-q", "main")
		want := tree{"a": "1\n2\n3\n4\n5\n", "gone": "g\n"}
		if more {
			in.commit("two", tree{"a": "1\ntheirs\n2\n3\n4\nfive\n"})
			want["a"] = "1\n2\n3\n4\nfive\n"
		}
		if out, err := g.bringHistory(in, copied, theirs); err != nil || len(out.Commits) == 0 {
			t.Fatalf("%v: %+v", err, out)
		}
		wantTree(t, "the branch", g.files("fix"), want)
	}
}
