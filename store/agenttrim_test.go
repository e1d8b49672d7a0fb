package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestEventsOfAgentsThatCannotBeReadAreRemovedToo: one of them must not keep all from being
// trimmed, or the next from being added.
func TestEventsOfAgentsThatCannotBeReadAreRemovedToo(t *testing.T) {
	s := newStore(t)
	mustUpdate(t, s, func(tx *Tx) error {
		for i := range 6 {
			for _, id := range []string{"a", "b"}[:1+i%2] {
				if err := tx.AppendAgentEvent(&agboxv1.AgentEvent{AgentId: id, Type: agboxv1.AgentEventType_AGENT_PROGRESS}); err != nil {
					return err
				}
			}
		}
		return errors.Join(tx.put(bucketAgentEvents("a"), number(2), []byte("\xff")), tx.put(bucketAgentEvents("a"), number(4), []byte("\xff")))
	})
	check := func(when, want string, all, a, b Trimmed) {
		t.Helper()
		mustView(t, s, func(tx *Tx) {
			var got []string
			page := tx.OrderedAgentEvents(0, 100)
			for _, ev := range page.Records {
				got = append(got, ev.GetEventId())
			}
			if list := fmt.Sprint(strings.Join(got, " "), " and ", len(page.Bad)); list != want {
				t.Errorf("%s there are %s; want %s", when, list, want)
			}
			if tx.AgentsTrimmed() != all || tx.AgentTrimmed("a") != a || tx.AgentTrimmed("b") != b {
				t.Errorf("%s removed were %v, %v, %v; want %v, %v, %v", when, tx.AgentsTrimmed(), tx.AgentTrimmed("a"), tx.AgentTrimmed("b"), all, a, b)
			}
		})
	}
	check("at first", "a/1 b/1 a/3 b/2 a/5 a/6 b/3 and 2", Trimmed{}, Trimmed{}, Trimmed{})
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropAgentEvent("a", 2, agboxv1.AgentEventType_AGENT_PROGRESS) })
	check("after a replacement", "a/1 b/1 a/3 b/2 a/5 a/6 b/3 and 1", Trimmed{}, Trimmed{}, Trimmed{})
	mustUpdate(t, s, func(tx *Tx) error { return tx.RemoveAgentEvents("a", 1, 2, 4, 6, 99) })
	check("after a trim", "b/1 a/3 b/2 a/5 a/6 b/3 and 0", Trimmed{UpTo: 5, Count: 2}, Trimmed{UpTo: 5, Count: 2}, Trimmed{})
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropAgent("a") })
	check("after the removal", "b/1 b/2 b/3 and 0", Trimmed{UpTo: 8, Count: 5}, Trimmed{}, Trimmed{})
}
