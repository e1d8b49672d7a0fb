package faults

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestRepetitionsAtTheSameTimeGetOneSandboxOfAPool has a client repeat a request while the first one still runs,
// as after a connection that broke.
func TestRepetitionsAtTheSameTimeGetOneSandboxOfAPool(t *testing.T) {
	t.Parallel()
	w := newWitness(t, harness.New(t))
	const size, rounds, repetitions = 3, 6, 6
	if err := w.setPool(harness.Bounded(t), size); err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if round%size == 0 {
			if err := w.stocked(harness.Bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
		cl := claim{id: fmt.Sprintf("c-%d", round), name: fmt.Sprintf("box-%d", round)}
		var all sync.WaitGroup
		var got [repetitions]string
		for i := range repetitions {
			all.Go(func() {
				h, err := w.c.CreateSandbox(harness.Bounded(t), cl.request(""))
				if got[i] = h.GetSandboxId(); err != nil {
					t.Errorf("repetition %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if ids := slices.Compact(slices.Sorted(slices.Values(got[:]))); len(ids) != 1 {
			t.Errorf("one request got the sandboxes %q", ids)
		}
		if list := w.in.Must(t, "ls", "-q"); len(strings.Fields(list)) != 1 {
			t.Errorf("agbox ls shows %q after one request", list)
		}
		w.in.Must(t, append([]string{"rm", "-f", "--wait"}, strings.Fields(w.in.Must(t, "ls", "-q"))...)...)
	}
	w.removePool(t)
	w.check(t)
}
