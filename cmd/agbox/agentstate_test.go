package main

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAnAgentThatStartsIsToldFromOneThatWorks(t *testing.T) {
	for _, row := range []struct {
		g    *agboxv1.Agent
		want string
	}{
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PENDING, Word: "PENDING"}, "PENDING"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PENDING, Word: "PENDING", Running: true}, "PENDING (starting)"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_EXECUTING, Word: "EXECUTING", Running: true, Lifecycle: agboxv1.AgentLifecycle_AGENT_LIFECYCLE_HYDRATING}, "EXECUTING (starting)"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_EXECUTING, Word: "EXECUTING", Running: true, Lifecycle: agboxv1.AgentLifecycle_AGENT_LIFECYCLE_BOOTING}, "EXECUTING"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PAUSED, Word: "RETRYING", PauseReason: agboxv1.PauseReason_PAUSE_REASON_CRASH}, "RETRYING"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PAUSED, Word: "RETRYING", PauseReason: agboxv1.PauseReason_PAUSE_REASON_CRASH, Running: true}, "RETRYING (starting)"},
		{&agboxv1.Agent{State: agboxv1.AgentState_AGENT_STATE_PAUSED, Word: "WAITING_FOR_APPROVAL", PauseReason: agboxv1.PauseReason_PAUSE_REASON_APPROVAL, Running: true}, "WAITING_FOR_APPROVAL"},
	} {
		if got := agentState(row.g); got != row.want {
			t.Errorf("%v is shown as %q; want %q", row.g, got, row.want)
		}
	}
}
