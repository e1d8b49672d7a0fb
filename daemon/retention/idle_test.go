package retention

import (
	"fmt"
	"runtime"
	"testing"
	"time"

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
