package incarnations

import (
	"fmt"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/journal"
)

// inbox lists the messages for the operator.
func (b *bench) inbox() (list []string) {
	b.t.Helper()
	messages, _, err := b.Ledger.Messages(b.t.Context(), "init", 0, 1<<20)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range messages {
		list = append(list, m.GetText())
	}
	return list
}

// TestAMessageInTheJournalIsDeliveredOnce: the journal is read from its beginning by each
// daemon, and its rows have no event of their own.
func TestAMessageInTheJournalIsDeliveredOnce(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	var want []string
	for i := range 5 {
		text := fmt.Sprint("message ", i)
		want = append(want, text)
		b.write(journal.Row{Op: journal.Hello}, journal.Row{Op: journal.Send, To: "init", Text: text})
		if i%2 == 0 {
			b.consume()
		}
		if i == 2 {
			b.restart()
			b.tell()
			b.consume()
		}
	}
	a := b.agent()
	b.write(journal.Row{Op: journal.Send, To: "parent", Text: "last words"})
	a, reports, err := b.End(t.Context(), a, &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e", ExitCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := b.Ledger.EmitReports(t.Context(), a.Record, reports); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.inbox(); !slices.Equal(got, append(want, "last words")) {
		t.Errorf("the operator has %q", got)
	}
}
