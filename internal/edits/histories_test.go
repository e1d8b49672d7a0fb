package edits

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestRandomHistoriesComeWhole compares a branch with the workspace after random edits inside,
// committed or not, on side branches or not, that are brought several times: the branch has the
// same files, and each commit of the sandbox. SCRIPTS=200 runs more.
func TestRandomHistoriesComeWhole(t *testing.T) {
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
