package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
)

// TestAJournalThatIsRemovedWhileItIsCountedDoesNotCount: its size is read without the lock.
func TestAJournalThatIsRemovedWhileItIsCountedDoesNotCount(t *testing.T) {
	for name, remove := range map[string]func(l *Ledger) error{
		"with its exec": func(l *Ledger) error {
			return l.Forget(t.Context(), "s", []machine.TrimPart{{ExecID: agents.ExecID("a", 1)}})
		},
		"as a file": func(l *Ledger) error { l.RecountJournals("s"); return nil },
	} {
		l := fresh(t)
		ready(t, l, "s")
		n := agentOf("a", "", "s")
		n.Spec.Stack = &agboxv1.AgentStack{Name: "crew", JournalBytes: 1 << 20}
		a := spawn(t, l, n)
		for i := range uint32(2) {
			a = emitAgent(t, l, a.Record, begun(i+1))
			endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED})
			a = now(t, l, "a")
		}
		sizes := map[uint32]uint64{1: 1000, 2: 10}
		l.CountJournals(a, func(incarnation uint32) uint64 {
			size := sizes[incarnation]
			if incarnation == 1 && size > 0 {
				delete(sizes, 1)
				if err := remove(l); err != nil {
					t.Fatal(err)
				}
			}
			return size
		})
		if got := l.StackJournals(a)[0].Ended; got != 10 {
			t.Errorf("removed %s: %d bytes count; want 10", name, got)
		}
		if list := l.UncountedJournals(a); len(list) > 0 {
			t.Errorf("removed %s: %d agents are not counted", name, len(list))
		}
	}
}
