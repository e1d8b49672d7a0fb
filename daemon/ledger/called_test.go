package ledger

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestRefusalsNameSandboxesAndAgentsAsPeopleDo(t *testing.T) {
	l := fresh(t)
	create(t, l, "s", "demo")
	emit(t, l, "s", agboxv1.EventType_SANDBOX_READY)
	says := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
	}
	spawn(t, l, agentOf("a", "fixer", "s"))
	if _, err := l.RequestStop(t.Context(), "s", ""); err != nil {
		t.Fatal(err)
	}
	_, err := l.RequestResume(t.Context(), "s")
	says(err, "Sandbox demo is ready and cannot be started now: ")
	_, err = l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_EXEC, "demo/x")
	says(err, `Sandbox demo has no exec "x"; "agbox ps -a demo" shows those that it has.`)

	_, err = l.DeleteAgent(t.Context(), "a")
	says(err, `Agent fixer is PENDING and cannot be removed; "agbox agent kill fixer" ends it.`)
	_, err = l.BreakLease(t.Context(), "a", "x")
	says(err, `Agent fixer does not hold "x"; `)
}

func TestTheRootOfAllAgentsIsToldFromAnUnknownAgent(t *testing.T) {
	l := fresh(t)
	_, err := l.FindAgent(agents.Init)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	_, err = l.FindAgent("nobody")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
}
