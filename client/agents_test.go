package client

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// olderAgents is a daemon without WaitAgent. Its agent ends while it is watched.
type olderAgents struct {
	agboxv1.UnimplementedAgentServiceServer
	record
	agent *agboxv1.Agent
}

func (o *olderAgents) GetAgent(context.Context, *agboxv1.GetAgentRequest) (*agboxv1.GetAgentResponse, error) {
	o.add("get")
	return &agboxv1.GetAgentResponse{Agent: o.agent}, nil
}

func (o *olderAgents) WatchAgents(_ *agboxv1.WatchAgentsRequest, s grpc.ServerStreamingServer[agboxv1.WatchAgentsResponse]) error {
	o.add("watch")
	for i, typ := range []agboxv1.AgentEventType{agboxv1.AgentEventType_AGENT_BEGUN, agboxv1.AgentEventType_AGENT_ENDED} {
		if typ == agboxv1.AgentEventType_AGENT_ENDED {
			o.agent = &agboxv1.Agent{AgentId: "a", Word: "COMPLETED", EndedAt: timestamppb.Now()}
		}
		if err := s.Send(&agboxv1.WatchAgentsResponse{Position: uint64(i + 1), Event: &agboxv1.AgentEvent{Type: typ}}); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

func TestAWaitForAnAgentWorksWithAnOlderDaemon(t *testing.T) {
	o := &olderAgents{agent: &agboxv1.Agent{AgentId: "a", Word: "EXECUTING"}}
	c := serve(t, &script{agents: o}).client()
	for _, want := range []string{"get watch get", "get watch get get"} { // it has ended then
		if a, err := c.WaitAgent(t.Context(), "a"); err != nil || a.GetWord() != "COMPLETED" || o.String() != want {
			t.Errorf("the wait gives %v, %v after the calls %q; want %q", a, err, &o.record, want)
		}
	}
	var e *Error
	if err := c.WaitAgentTree(t.Context(), "a", nil); !errors.As(err, &e) || e.Code != codes.Unimplemented {
		t.Errorf("a wait for a tree: %v", err)
	}
}
