package incarnations

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestWhatEndedAnIncarnationWithItsContext(t *testing.T) {
	const (
		exited    = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
		succeeded = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT
	)
	killed := ledger.Agent{Record: agents.Record{Kill: new(agboxv1.AgentKill)}}
	for _, row := range []struct {
		name    string
		a       ledger.Agent
		exec    *agboxv1.ExecStatus
		context string
		want    agboxv1.IncarnationEndKind
	}{
		{"exited, dying", ledger.Agent{}, &agboxv1.ExecStatus{}, gate.Dying, exited},
		{"exited after its final call", ledger.Agent{}, &agboxv1.ExecStatus{}, gate.Draining, succeeded},
		{"crashed after its final call", ledger.Agent{}, &agboxv1.ExecStatus{ExitCode: 1}, gate.Draining, exited},
		{"ended by a signal after its final call", ledger.Agent{}, &agboxv1.ExecStatus{ExitCode: 137, Signal: 9}, gate.Draining, exited},
		{"reaped", ledger.Agent{}, &agboxv1.ExecStatus{ExitCode: 137, Signal: 9}, gate.Dead, succeeded},
		{"crashed, dead", ledger.Agent{}, &agboxv1.ExecStatus{ExitCode: 1}, gate.Dead, succeeded},
		{"out of memory, dead", ledger.Agent{}, &agboxv1.ExecStatus{ExitCode: 137, OomKilled: true}, gate.Dead, exited},
		{"killed, dead", killed, &agboxv1.ExecStatus{ExitCode: 143}, gate.Dead, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED},
		{"lost, dead", ledger.Agent{}, &agboxv1.ExecStatus{ErrorCode: "EXEC_LOST"}, gate.Dead, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST},
		{"stopped with its sandbox, dead", ledger.Agent{}, &agboxv1.ExecStatus{ErrorCode: "SANDBOX_STOPPED_UNDER_EXEC"}, gate.Dead, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED},
	} {
		if got := kindOf(row.a, row.exec, journal.Summary{Context: row.context}, false); got != row.want {
			t.Errorf("%s: %s; want %s", row.name, got, row.want)
		}
	}
}

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
