package server

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// waitStream is a client of WaitAgent.
type waitStream struct {
	grpc.ServerStreamingServer[agboxv1.WaitAgentResponse]
	ids []string
}

func (s *waitStream) Send(m *agboxv1.WaitAgentResponse) error {
	s.ids = append(s.ids, m.GetAgent().GetAgentId())
	return nil
}

// TestAWaitForTheTreeOfARemovedAgentGoesOn: a client that lost its stream opens it again.
func TestAWaitForTheTreeOfARemovedAgentGoesOn(t *testing.T) {
	b := newTribe(t)
	book := b.calls.ledger
	b.spawn("root", "", "s", false)
	b.spawn("leaf", "root", "s", false)
	emit := func(id string, ev *agboxv1.AgentEvent) {
		t.Helper()
		a, _ := book.Agent(id)
		if _, err := book.EmitAgent(t.Context(), a.Record, ev); err != nil {
			t.Fatal(err)
		}
	}
	emit("root", agents.Reaped("test"))
	emit("leaf", &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: agents.Init, From: "root"}},
	})
	emit("leaf", agents.Reaped("test"))
	for _, step := range []struct {
		remove string
		tree   bool
		want   []string // nil is NOT_FOUND
	}{
		{"root", false, nil},
		{"", true, []string{"leaf"}},
		{"leaf", true, nil},
	} {
		if step.remove != "" {
			if _, err := book.DeleteAgent(t.Context(), step.remove); err != nil {
				t.Fatal(err)
			}
		}
		var s waitStream
		err := b.calls.WaitAgent(&agboxv1.WaitAgentRequest{AgentId: "root", Tree: step.tree}, &s)
		if missing := step.want == nil; errdefs.IsNotFound(err) != missing || !missing && err != nil || !slices.Equal(s.ids, step.want) {
			t.Errorf("removed %q, tree %v: %v, %v; want %v", step.remove, step.tree, s.ids, err, step.want)
		}
	}
}
