package ledger

import (
	"fmt"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

func TestSurplusLooksAtNoTreeWithinItsBound(t *testing.T) {
	l := fresh(t)
	gone := func(tree string, n int) {
		t.Helper()
		sb := Sandbox{Spec: &agboxv1.CreateSpec{Derived: &agboxv1.DerivedSpec{Tree: tree}}}
		sb.ID, sb.State, sb.StateChangedAt = fmt.Sprint(tree, "-", n), machine.Deleted, time.Unix(int64(n), 0)
		l.sandboxes.putLocked(sb)
	}
	for tree := range 100 {
		for n := range KeptOfTree {
			gone(fmt.Sprint("tree-", tree), n)
		}
	}
	for _, looked := range []int{0, 1, 0} {
		surplus := l.Surplus()
		if n := len(l.sandboxes.crowded[all]); n != looked || len(surplus) != looked {
			t.Errorf("it looks at %d trees and finds %v; want %d", n, surplus, looked)
		}
		if looked == 0 {
			gone("tree-7", KeptOfTree)
		} else if !surplus["tree-7-0"] {
			t.Errorf("of a tree, the oldest should go, and not %v", surplus)
		}
		for id := range surplus {
			l.dropped(id)
		}
	}
}
