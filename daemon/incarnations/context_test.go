package incarnations

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
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
