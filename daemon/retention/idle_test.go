package retention

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAPassWithNothingToDoCostsNothingForWhatThereIs counts the memory that a pass takes, for
// example for lists: it does not grow with what lives, has ended or is deleted.
func TestAPassWithNothingToDoCostsNothingForWhatThereIs(t *testing.T) {
	b := newBox(t)
	b.keeper.rules.MaxAgents = 1000
	idle := func() uint64 {
		b.pass(time.Second)
		b.pass(time.Second) // what was deleted is due once more
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.pass(time.Second)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	b.ready("s")
	few := idle()
	for i := range 50 {
		b.ready(fmt.Sprint("living-", i))
		b.run(fmt.Sprint("living-", i), fmt.Sprint("x-", i))
		tree := fmt.Sprint("tree-", i)
		_, err := b.book.Create(t.Context(), tree, &agboxv1.CreateSpec{Image: "img", Derived: &agboxv1.DerivedSpec{Parent: tree, Tree: tree}})
		b.must(err)
		b.remove(tree)
		b.spawn(fmt.Sprint("lives-", i), "s")
		b.spawn(fmt.Sprint("ended-", i), "s")
		b.endAgent(fmt.Sprint("ended-", i))
		b.spawn(fmt.Sprint("deleted-", i), "s")
		b.endAgent(fmt.Sprint("deleted-", i))
		_, err = b.book.DeleteAgent(t.Context(), fmt.Sprint("deleted-", i))
		b.must(err)
	}
	if many := idle(); many > few+4<<10 {
		t.Errorf("an idle pass takes %d bytes with 50 of everything, and %d with one sandbox", many, few)
	}
}

// TestAPassDoesNotReadTheHistoryOfASandboxForOneEvent: there is room for it, and what is old is
// due later.
func TestAPassDoesNotReadTheHistoryOfASandboxForOneEvent(t *testing.T) {
	b := newBox(t)
	b.ready("a")
	one := func(execID string) uint64 {
		b.pass(time.Second)
		b.run("a", execID)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.pass(time.Second)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	few := one("first")
	for i := range 200 {
		b.run("a", fmt.Sprint("x-", i))
	}
	if many := one("last"); many > few+4<<10 {
		t.Errorf("a pass after one more exec takes %d bytes with 400 events, and %d with three", many, few)
	}
}

// TestASandboxIsReadAgainOnceItMayHaveTooMuch, after a pass that had room for more.
func TestASandboxIsReadAgainOnceItMayHaveTooMuch(t *testing.T) {
	for what, bound := range map[string]func(*machine.Retention){
		"execs":  func(r *machine.Retention) { r.MaxExecs = 4 },
		"events": func(r *machine.Retention) { r.MaxEvents = 2 + 2*4 }, // those of the sandbox, and of each exec
	} {
		b := newBox(t)
		bound(&b.keeper.rules)
		b.ready("a")
		b.run("a", "1", "2")
		b.pass(time.Minute)
		b.run("a", "3", "4")
		b.pass(time.Minute)
		b.want(what+" while there is room", b.execs("a"), "1 2 3 4")
		b.run("a", "5")
		b.pass(time.Minute)
		b.want(what+" with one too many", b.execs("a"), "2 3 4 5")
		b.pass(57*time.Minute - time.Second)
		b.want(what+" before their time", b.execs("a"), "2 3 4 5")
		b.pass(time.Second)
		b.want(what+" after the time of some", b.execs("a"), "3 4 5")
	}
}
