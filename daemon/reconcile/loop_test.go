package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/runtime/runtimetest"
)

func TestAFailingPhaseOfTheResyncStopsNoOther(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	var ran []string
	note := func(name string, end func() error) phase {
		return phase{name, func(context.Context, *fullLook) error {
			ran = append(ran, name)
			return end()
		}}
	}
	loop := &Loop{log: l.loop.log}
	loop.phases = []phase{
		note("first", func() error { panic("a defect") }),
		note("second", func() error { return errors.New("no luck") }),
		note("third", func() error { return nil }),
	}
	for range 2 {
		loop.resync(t.Context())
	}
	if want := []string{"first", "second", "third", "first", "second", "third"}; !slices.Equal(ran, want) {
		t.Errorf("phases %v; want %v", ran, want)
	}
	if err := loop.phases[0].isolated(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "a defect") || !strings.Contains(err.Error(), "loop_test.go") {
		t.Errorf("the panic became %v; want an error with its place", err)
	}
}

// TestTheOrderOfThePhases: agents that can begin, then those that have ended, then the
// environment with what is made ahead, and at last the orphans.
func TestTheOrderOfThePhases(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range new(Loop).resyncPhases() {
		names = append(names, p.name)
	}
	if want := "dispatch lifecycle-cleanup engine sandboxes pools fence orphans orphan-reparent"; strings.Join(names, " ") != want {
		t.Errorf("the phases are %v; want %s", names, want)
	}
}
