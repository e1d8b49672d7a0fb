package ledger

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

func TestRequestsOfUsersAreAboutAgentsThatExistAndNotAboutTheRoot(t *testing.T) {
	l := fresh(t)
	for name, request := range map[string]func(id string) (Agent, error){
		"pause":   func(id string) (Agent, error) { return l.PauseAgent(t.Context(), id, "") },
		"approve": func(id string) (Agent, error) { return l.ApproveAgent(t.Context(), id, 1, "") },
		"drain":   func(id string) (Agent, error) { return l.RequestDrain(t.Context(), id) },
		"wake":    func(id string) (Agent, error) { return l.WakeAgent(t.Context(), id) },
		"kill":    func(id string) (Agent, error) { return l.RequestKill(t.Context(), id, &agboxv1.AgentKill{}) },
		"resolve": func(id string) (Agent, error) { return l.ResolveAgent(t.Context(), id, 0) },
		"hold":    func(id string) (Agent, error) { return l.OpenHold(t.Context(), id, "client:c", time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := request("b")
			wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
			_, err = request(agents.Init)
			wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
		})
	}
}
