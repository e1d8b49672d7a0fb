package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// TestALookThatFailsUsesNoOlderListAfterwards: it may have inspected one container and not another.
// A container that the engine does not have leaves no doubt, which no event of it would end.
func TestALookThatFailsUsesNoOlderListAfterwards(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	l := begin(t, engine, t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	primary := l.container("")
	loop := New(Options{Ledger: l.ledger, Engine: engine, Now: time.Now, Log: l.loop.log})
	look := func(failure error) *sandboxWork {
		t.Helper()
		w := &sandboxWork{id: "a", since: time.Now().Add(-time.Minute)}
		loop.mu.Lock()
		loop.inventory = map[string]runtime.Inventory{"a": {Containers: []runtime.Container{primary}}}
		loop.inventoryAt, loop.same = time.Now(), true
		loop.mu.Unlock()
		loop.doubt(primary.ID)
		engine.Fail(runtimetest.VerbInspectContainer, failure)
		if err := loop.look(t.Context(), w, sb, new(machine.Observation)); err == nil {
			t.Fatal("the inspection did not fail")
		}
		return w
	}
	w := look(errors.New("no answer"))
	if _, fresh := loop.shared("a", w.since); fresh || !loop.inDoubt(primary.ID) {
		t.Errorf("after an inspection that failed the older list is used: %t, and the container is in doubt: %t", fresh, loop.inDoubt(primary.ID))
	}
	primary.ID = "gone"
	w = look(nil)
	if _, fresh := loop.shared("a", w.since); fresh || loop.inDoubt("gone") {
		t.Errorf("without the container the older list is used: %t, and it is in doubt: %t", fresh, loop.inDoubt("gone"))
	}
}
