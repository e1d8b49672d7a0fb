package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
)

// happened waits for the first event of a type of an agent, and returns when it
// was recorded.
func (b *agentBench) happened(ctx context.Context, id string, typ agboxv1.AgentEventType) (at time.Time, err error) {
	err = b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool {
		at = ev.GetOccurredAt().AsTime()
		return ev.GetType() == typ
	})
	return at, err
}

// letGo breaks the connection of the only client that holds an agent.
func (b *agentBench) letGo(ctx context.Context) ([]figure, error) {
	a, err := b.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{SandboxId: b.box, Hold: "client", Spec: &agboxv1.AgentSpec{
		Command: []string{"sh", "-c", "while agbox-agent drained > /dev/null; do sleep 0.1; done; exit 75"}, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD,
	}})
	if err != nil {
		return nil, err
	}
	for _, err := range b.c.HoldAgent(ctx, client.AgentHold{Agent: a.GetAgentId(), Name: "client"}) {
		if err != nil {
			return nil, err
		}
		if err := rest(ctx, 10*time.Second); err != nil { // longer than the measurement is off
			return nil, err
		}
		break
	}
	lost := time.Now()
	closed, err := b.happened(ctx, a.GetAgentId(), agboxv1.AgentEventType_AGENT_CLOSED)
	if err != nil {
		return nil, err
	}
	asked, err := b.happened(ctx, a.GetAgentId(), agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED)
	return []figure{
		{"held, and the connection of its client is lost: not held any more", 30 * time.Second, 30*time.Second + late, closed.Sub(lost)},
		{"held, and the connection of its client is lost: suspended", 30 * time.Second, 30*time.Second + late, asked.Sub(lost)},
	}, err
}

// deaf has a parent that never acknowledges that its child has ended.
func (b *agentBench) deaf(ctx context.Context) ([]figure, error) {
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{
		Command: []string{"sh", "-c", "agbox-agent spawn --class deaf -- true && exec sleep 100000"}, MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"deaf"}},
	})
	if err != nil {
		return nil, err
	}
	failed, err := b.happened(ctx, id, agboxv1.AgentEventType_AGENT_SIGNAL_FAILED)
	if err != nil {
		return nil, err
	}
	children, err := b.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true, Class: "deaf"})
	if err != nil || len(children) != 1 {
		return nil, fmt.Errorf("there are the children %v: %w", children, err)
	}
	kept := 0
	for m, err := range b.c.Inbox(ctx, id) {
		if err != nil {
			return nil, err
		}
		if m.GetFrom() == children[0].GetAgentId() && m.GetTries() == 3 {
			kept++
		}
	}
	if kept != 1 {
		err = fmt.Errorf("after three tries the inbox has %d messages of the child; want 1", kept)
	}
	return []figure{{"the end of a child, told three times and not acknowledged: given up", 90 * time.Second, 90*time.Second + late,
		failed.Sub(children[0].GetEndedAt().AsTime())}}, errors.Join(err, b.c.DeleteAgent(ctx, children[0].GetAgentId()), b.remove(ctx, id))
}

// expired stops the sandbox of an agent that holds a resource.
func (b *agentBench) expired(ctx context.Context) ([]figure, error) {
	own := *b
	var err error
	if own.box, err = b.sandbox(ctx); err != nil {
		return nil, err
	}
	id, err := own.spawn(ctx, own.box, &agboxv1.AgentSpec{Command: []string{"sh", "-c", "agbox-agent acquire x; while agbox-agent drained > /dev/null; do sleep 0.1; done; exit 75"}})
	if err != nil {
		return nil, err
	}
	if _, err := own.happened(ctx, id, agboxv1.AgentEventType_AGENT_GRANTED); err != nil {
		return nil, err
	}
	if err := b.c.StopSandbox(ctx, own.box); err != nil {
		return nil, err
	}
	ended, err := own.happened(ctx, id, agboxv1.AgentEventType_AGENT_INCARNATION_ENDED)
	if err != nil {
		return nil, err
	}
	gone, err := own.happened(ctx, id, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED)
	return []figure{{"leases of an agent without a program: expired", 300 * time.Second, 300*time.Second + late, gone.Sub(ended)}}, err
}
