package ledger

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
)

// TestAnEndedExecIsSearchedForOnce: a search looks at all sandboxes whose records are kept.
func TestAnEndedExecIsSearchedForOnce(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	longAgo(t, l, "a", 2)
	longAgo(t, l, "b", 1)
	find := func(id, want string, searches uint64) {
		t.Helper()
		before := l.execs.searches.Load()
		got, err := l.FindExec(t.Context(), id)
		if n := l.execs.searches.Load() - before; got != want || n != searches || (want == "") != errdefs.IsNotFound(err) {
			t.Errorf("exec %s is in %q, %v, after %d searches; want %q after %d", id, got, err, n, want, searches)
		}
	}
	find("a-1", "a", 0) // this daemon has seen it end
	find("b-0", "b", 0)
	find("never", "", 0)
	stop()
	l, stop = open(t, dir)
	defer stop()
	find("a-1", "a", 1)
	find("a-1", "a", 0)
	if err := l.Forget(t.Context(), "a", []machine.TrimPart{{ExecID: "a-1"}}); err != nil {
		t.Fatal(err)
	}
	find("a-1", "", 1) // what is remembered is checked
	find("a-0", "a", 1)
	if err := l.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	find("a-0", "", 1)
}

func TestTheIndexOfExecsIsBounded(t *testing.T) {
	var x execIndex
	for i := range 3 * maxExecIndex {
		x.put(fmt.Sprint(i), "s")
	}
	if n := len(x.newer) + len(x.older); n > 2*maxExecIndex || x.sandboxOf(fmt.Sprint(3*maxExecIndex-1)) != "s" || x.sandboxOf(fmt.Sprint(2*maxExecIndex)) != "s" {
		t.Errorf("%d execs are remembered, or not the newest", n)
	}
}

// BenchmarkFindExec finds an exec beside so many sandboxes whose records are kept.
func BenchmarkFindExec(b *testing.B) {
	for _, kept := range []int{10, 1000} {
		l := fresh(b)
		for i := range kept {
			longAgo(b, l, fmt.Sprintf("s%05d", i), 1)
		}
		last := fmt.Sprintf("s%05d-0", kept-1)
		for _, what := range []string{"searched", "remembered"} {
			b.Run(fmt.Sprint(kept, "/", what), func(b *testing.B) {
				for b.Loop() {
					if what == "searched" {
						l.execs.newer, l.execs.older = nil, nil
					}
					if _, err := l.FindExec(b.Context(), last); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
