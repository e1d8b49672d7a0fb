package edits

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
)

// Files that the workspace has as they were copied come in the order of their paths, as others do.
func TestWhatTheWorkspaceHasTakenBackIsInOrder(t *testing.T) {
	t.Parallel()
	base, changed := make(tree), make(tree)
	for i := range 20 {
		name := fmt.Sprintf("f%02d", i)
		base[name], changed[name] = "1\n", "2\n"
	}
	g := repo(t, base)
	copied, in := g.head(), g.inside()
	in.commit("one", changed)
	base.write(t, in.dir)
	out, err := g.bringHistory(in, copied, base)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Outcomes) != len(base) || !slices.IsSortedFunc(out.Outcomes, func(a, b Outcome) int { return cmp.Compare(a.Path, b.Path) }) {
		t.Errorf("the outcome is %+v", out.Outcomes)
	}
}
