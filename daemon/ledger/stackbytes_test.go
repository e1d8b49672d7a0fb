package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// crew makes a ledger with an agent that is the root of a stack whose inboxes are bounded, a
// root of an inner one below it, and a child of that.
func crew(t *testing.T, dir string) (*Ledger, func()) {
	t.Helper()
	l, stop := open(t, dir)
	ready(t, l, "s")
	for i, id := range []string{"outer", "inner", "leaf"} {
		n := agentOf(id, "", "s")
		if i < 2 {
			n.Spec.Stack = &agboxv1.AgentStack{Name: id, InboxBytes: 5000}
		}
		if i > 0 {
			n.Parent = []string{"outer", "inner"}[i-1]
		}
		spawn(t, l, n)
	}
	return l, stop
}

// stackBytes are the sums by a look at all inboxes.
func stackBytes(l *Ledger) map[string]int {
	sums := make(map[string]int)
	for _, a := range l.Agents(nil) {
		for _, root := range a.StackRoots {
			if n := l.mail.inboxes[a.ID].sentBytes; n > 0 {
				sums[root] += n
			}
		}
	}
	return sums
}

func TestTheBytesInTheInboxesOfAStackAreSummedUp(t *testing.T) {
	dir, r := t.TempDir(), rand.New(rand.NewPCG(3, 1))
	l, stop := crew(t, dir)
	refused := 0
	for i := range 200 {
		id := []string{"outer", "inner", "leaf"}[r.IntN(3)]
		switch r.IntN(4) {
		case 0:
			if err := l.Acknowledge(t.Context(), id, uint64(r.IntN(i+1))); err != nil {
				t.Fatal(err)
			}
		case 1: // two in one transaction, which may be rolled back
			_ = l.store.Update(t.Context(), func(tx *store.Tx) error {
				for range 2 {
					if err := l.deliver(tx, id, &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_TEXT, From: "x", Text: strings.Repeat("x", 300)}); err != nil {
						return err
					}
				}
				if r.IntN(2) == 0 {
					return errors.New("rolled back")
				}
				return nil
			})
		default:
			if _, err := l.SendMessage(t.Context(), "x", id, "", strings.Repeat("x", r.IntN(900)+1)); err != nil {
				wantReason(t, err, agboxv1.ErrorReason_INBOX_FULL)
				refused++
			}
		}
		if want := stackBytes(l); !maps.Equal(l.mail.stacks, want) {
			t.Fatalf("step %d: the sums are %v; a look at all inboxes gives %v", i, l.mail.stacks, want)
		}
		if sum := l.mail.stacks["outer"]; sum > 5000 {
			t.Fatalf("step %d: a stack has %d bytes", i, sum)
		}
	}
	if refused == 0 {
		t.Error("no message was refused")
	}
	stop()
	l, stop = open(t, dir)
	defer stop()
	if want := stackBytes(l); !maps.Equal(l.mail.stacks, want) || len(want) == 0 {
		t.Errorf("after a restart the sums are %v; a look at all inboxes gives %v", l.mail.stacks, want)
	}
	leaf, _ := l.Agent("leaf")
	emitAgent(t, l, leaf.Record, agents.Reaped("test"))
	if _, err := l.DeleteAgent(t.Context(), "leaf"); err != nil {
		t.Fatal(err)
	}
	if want := stackBytes(l); !maps.Equal(l.mail.stacks, want) {
		t.Errorf("after a removal the sums are %v; a look at all inboxes gives %v", l.mail.stacks, want)
	}
}

// TestAMessageLooksAtNoOtherMemberOfTheStack counts the records that it is delivered with.
func TestAMessageLooksAtNoOtherMemberOfTheStack(t *testing.T) {
	l, _ := crew(t, t.TempDir())
	looked := func() uint64 {
		before := l.agents.copied.Load()
		if _, err := l.SendMessage(t.Context(), "x", "leaf", "", "hello"); err != nil {
			t.Fatal(err)
		}
		return l.agents.copied.Load() - before
	}
	few := looked()
	leaf, _ := l.Agent("leaf")
	for i := range 1000 {
		a := leaf
		a.ID, a.Position, a.State = fmt.Sprint("ended-", i), leaf.Position+uint64(i)+1, agents.Completed
		place(l, a)
	}
	if many := looked(); many > few {
		t.Errorf("a message looks at %d agents in a stack of which 1000 have ended, and at %d of which none has", many, few)
	}
}
