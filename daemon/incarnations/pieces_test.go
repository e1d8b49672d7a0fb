package incarnations

import (
	"fmt"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
)

// subscribe spawns agents that have a stream open.
func (b *bench) subscribe(stream string, count int) (ids []string) {
	b.t.Helper()
	for i := range count {
		id := fmt.Sprint("listener-", i)
		if _, err := b.Ledger.SpawnAgent(b.t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}); err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.Ledger.OpenStream(b.t.Context(), id, stream); err != nil {
			b.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// deliveries counts the messages that arrive, by how much of the journal is consumed then:
// what one transaction consumes has one number of rows.
func (b *bench) deliveries() map[uint64]int {
	counts := make(map[uint64]int)
	b.Ledger.NotifyAgents(func(string) {
		upto := uint64(0) // the rest, with the end
		if inc := b.agent().Incarnation; inc != nil {
			upto = inc.JournalUpto
		}
		counts[upto]++
	})
	return counts
}

// TestManyMessagesAreDeliveredInPieces: everybody else who writes waits for each transaction.
func TestManyMessagesAreDeliveredInPieces(t *testing.T) {
	for _, ending := range []bool{false, true} {
		t.Run(fmt.Sprintf("ending %v", ending), func(t *testing.T) {
			b := newBench(t, &agboxv1.AgentSpec{})
			const messages, subscribers = 240, 12
			listeners, counts := b.subscribe("news", subscribers), b.deliveries()
			for i := range messages {
				b.write(journal.Row{Op: journal.Usage, Used: &journal.Used{InputTokens: uint64(i)}}, journal.Row{Op: journal.Send, Stream: "news", Text: fmt.Sprint(i)})
			}
			if ending {
				a, last, err := b.End(t.Context(), b.agent(), &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e"})
				if err != nil {
					t.Fatal(err)
				}
				if after, err := b.Ledger.EmitReports(t.Context(), a.Record, last); err != nil || after.Incarnation != nil {
					t.Fatalf("the incarnation has not ended: %v", err)
				}
			} else {
				b.consume()
			}
			for upto, count := range counts {
				if count > maxPiece+subscribers {
					t.Errorf("one transaction, up to row %d, has delivered %d messages", upto, count)
				}
			}
			for _, id := range listeners {
				b.wantOrder(id, messages)
			}
			if got := b.agent().Progress.GetTotal().GetInputTokens(); got != messages-1 {
				t.Errorf("%d tokens are recorded", got)
			}
		})
	}
}

// wantOrder checks that an inbox has the numbers below count, in order.
func (b *bench) wantOrder(id string, count int) {
	b.t.Helper()
	next, after := 0, uint64(0)
	for left := 1; left > 0; {
		list, further, err := b.Ledger.Messages(b.t.Context(), id, after, 1<<20)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, m := range list {
			if m.GetText() != fmt.Sprint(next) {
				b.t.Fatalf("message %d of %s is %q", next, id, m.GetText())
			}
			next, after = next+1, m.GetSeq()
		}
		left = further
	}
	if next != count {
		b.t.Errorf("%s has %d messages", id, next)
	}
}

// TestAPieceIsRecordedOnceThoughTheDaemonIsKilled: the next daemon reads the journal from its
// beginning, in the same pieces.
func TestAPieceIsRecordedOnceThoughTheDaemonIsKilled(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	const messages = 240
	listeners := b.subscribe("news", 12)
	for i := range messages {
		b.write(journal.Row{Op: journal.Send, Stream: "news", Text: fmt.Sprint(i)})
	}
	a := b.agent()
	if _, err := b.record(t.Context(), a, b.reports(a)); err != nil {
		t.Fatal(err)
	}
	if got := b.agent().Incarnation.JournalUpto; got == 0 || got >= messages {
		t.Fatalf("the first piece has %d rows", got)
	}
	b.restart()
	b.tell()
	b.consume()
	for _, id := range listeners {
		b.wantOrder(id, messages)
	}
}
