package incarnations

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
)

func TestAJournalIsReadFromARowOn(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT})
	b.write(journal.Row{Op: journal.Hello}, journal.Row{Op: journal.Phase, State: journal.Planning}, used(5))
	b.writeLine("no row\n")
	b.write(journal.Row{Op: journal.Step, Steps: 1})
	at := journal.Beginning()
	at.Sum.Phase = agents.RulesOf(b.agent().Spec).FirstPhase()
	end := at
	read := func(execID string, after uint64, fails error) (rows []string, err error) {
		end, err = b.Journal("a", execID, at, after, func(number uint64, row []byte) error {
			rows = append(rows, fmt.Sprintf("%d %s", number, row))
			return fails
		})
		return rows, err
	}
	want := []string{`3 {"at":0,"op":"usage","used":{"input_tokens":5,"output_tokens":0,"cost_micro_usd":0}}`, `4 {"at":0,"op":"step","steps":1}`}
	if rows, err := read("e", 2, nil); err != nil || !slices.Equal(rows, want) {
		t.Errorf("%q, %v", rows, err)
	}
	gone := errors.New("the client is gone")
	if rows, err := read("e", 0, gone); !errors.Is(err, gone) || len(rows) != 1 {
		t.Errorf("%q, %v", rows, err)
	}
	if rows, err := read("none", 0, nil); err != nil || rows != nil {
		t.Errorf("a journal that does not exist: %q, %v", rows, err)
	}
	if _, err := read("e", 0, nil); err != nil {
		t.Fatal(err)
	}
	at = end
	b.write(journal.Row{Op: journal.Step, Steps: 2})
	if rows, err := read("e", 0, nil); err != nil || !slices.Equal(rows, []string{`5 {"at":0,"op":"step","steps":2}`}) {
		t.Errorf("from the place after four rows: %q, %v", rows, err)
	}
}
