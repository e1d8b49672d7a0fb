package incarnations

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
)

func TestWhatEndsADrainedIncarnation(t *testing.T) {
	const (
		drained = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
		exited  = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
	)
	spent := ledger.Agent{Record: agents.Record{Progress: &agboxv1.AgentProgress{Total: &agboxv1.AgentUsage{InputTokens: 500_000}}}}
	paused := ledger.Agent{Record: agents.Record{PauseWanted: &agboxv1.AgentPause{}}}
	killed := ledger.Agent{Record: agents.Record{Kill: &agboxv1.AgentKill{}}}
	for _, row := range []struct {
		name     string
		a        ledger.Agent
		code     string
		stopping bool
		want     agboxv1.IncarnationEndKind
	}{
		{"drained", ledger.Agent{}, "EXEC_DRAINED", false, drained},
		{"drained, budget used up", spent, "EXEC_DRAINED", false, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET},
		{"killed while it was drained", killed, "EXEC_DRAINED", false, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED},
		{"stopped from outside", ledger.Agent{}, "SANDBOX_STOPPED_UNDER_EXEC", false, drained},
		{"cancelled by somebody", ledger.Agent{}, "CANCELLED_BY_REQUEST", false, exited},
		{"paused under an old supervisor", paused, "CANCELLED_BY_REQUEST", false, drained},
		{"stopped under an old supervisor", ledger.Agent{}, "CANCELLED_BY_REQUEST", true, drained},
		{"exited while its sandbox is to stop", ledger.Agent{}, "", true, exited},
	} {
		if got := kindOf(row.a, &agboxv1.ExecStatus{ErrorCode: row.code, ExitCode: 137}, journal.Summary{}, row.stopping); got != row.want {
			t.Errorf("%s: %s; want %s", row.name, got, row.want)
		}
	}
}
