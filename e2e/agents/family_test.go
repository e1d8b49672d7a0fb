package agents

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// parental is patient for a robot with children, and for all below it.
func parental(p robot.Plan) *agboxv1.AgentSpec {
	spec := patient()
	spec.Command = p.Command()
	spec.MaySpawn = &agboxv1.AgentMaySpawn{Classes: []string{"worker"}, Children: uint32(p.Fanout), Depth: uint32(p.Depth)}
	spec.Breaker = &agboxv1.AgentBreakerLimits{Failures: 1000, Window: durationpb.New(time.Minute)}
	return spec
}

// everybody waits until at least so many agents were made and all have ended, and returns
// what is known of them.
func everybody(ctx context.Context, t *testing.T, c *client.Client, folder robot.Folder, number int) robot.Family {
	t.Helper()
	f := robot.Family{Folder: folder, Unread: make(map[string][]*agboxv1.AgentMessage)}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	var all []*agboxv1.Agent
	for {
		var err error
		if all, err = c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true}); err != nil {
			t.Fatal(err)
		}
		if len(all) > number && !slices.ContainsFunc(all, alive) {
			break
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("of at least %d agents there are %d with the root, and not all have completed: %v", number, len(all), summary(all))
		}
	}
	for _, a := range all {
		if a.GetAgentId() != robot.Root {
			f.Agents = append(f.Agents, a)
		}
		f.Events = append(f.Events, eventsOf(ctx, t, c, a)...)
		for m, err := range c.Inbox(ctx, a.GetAgentId()) {
			if err != nil {
				t.Fatal(err)
			}
			f.Unread[a.GetAgentId()] = append(f.Unread[a.GetAgentId()], m)
		}
	}
	slices.SortFunc(f.Events, func(a, b *agboxv1.AgentEvent) int { return cmp.Compare(a.GetPosition(), b.GetPosition()) })
	return f
}

// alive reports whether an agent is to end some time and has not.
func alive(a *agboxv1.Agent) bool {
	switch a.GetState() {
	case agboxv1.AgentState_AGENT_STATE_COMPLETED, agboxv1.AgentState_AGENT_STATE_ABORTED,
		agboxv1.AgentState_AGENT_STATE_FAILED, agboxv1.AgentState_AGENT_STATE_DEAD_LETTER:
		return false
	}
	return a.GetAgentId() != robot.Root
}

// summary has a line for each agent that has not completed its work.
func summary(all []*agboxv1.Agent) (lines []string) {
	for _, a := range all {
		if a.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED {
			lines = append(lines, fmt.Sprintf("\n%s, a child of %s, is %s: %s", a.GetAgentId(), a.GetParent(), a.GetWord(), a.GetMessage()))
		}
	}
	return lines
}

// eventsOf returns the events of an agent so far.
func eventsOf(ctx context.Context, t *testing.T, c *client.Client, a *agboxv1.Agent) (events []*agboxv1.AgentEvent) {
	t.Helper()
	for ev, err := range c.WatchAgents(ctx, a.GetAgentId(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if events = append(events, ev); ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	return events
}

func TestAFamilyOfThirteenTellsItsParents(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in)
	plan := robot.Plan{Steps: 5, Seed: 13, Fanout: 3, Depth: 2, Deaths: 1, Stream: "news"}
	c, ctx := in.Client(t), harness.Bounded(t)
	if _, err := c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: parental(plan), SandboxId: "demo"}); err != nil {
		t.Fatal(err)
	}
	f := everybody(ctx, t, c, folder, 13)
	f.Check(t)
	if len(f.Agents) != 13 {
		t.Errorf("there are %d agents; want 13", len(f.Agents))
	}
	for _, a := range f.Agents {
		folder.Story(t, a.GetAgentId()).CheckCompleted(t, a, plan)
	}
}
