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
	spec.LeaseTtl = durationpb.New(2 * time.Second)
	spec.Breaker = &agboxv1.AgentBreakerLimits{Failures: 1000, Window: durationpb.New(time.Minute)}
	return spec
}

// everybody waits until at least so many agents were made and all have ended, and returns
// what is known of them.
func everybody(ctx context.Context, t *testing.T, c *client.Client, folder robot.Folder, number int) robot.Family {
	t.Helper()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	var all []*agboxv1.Agent
	isRoot := func(a *agboxv1.Agent) bool { return a.GetAgentId() == robot.Root }
	for {
		var err error
		if all, err = c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true}); err != nil {
			t.Fatal(err)
		}
		// The root is listed once it has events.
		if made := slices.DeleteFunc(slices.Clone(all), isRoot); len(made) >= number && !slices.ContainsFunc(all, alive) {
			break
		}
		holdOrphans(ctx, t, c, all)
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("of at least %d agents there are %d, perhaps with the root, and not all have ended: %v%s", number, len(all), summary(all), unfinished(ctx, t, c, folder, all))
		}
	}
	f := robot.Family{Folder: folder, Unread: map[string][]*agboxv1.AgentMessage{robot.Root: unread(ctx, t, c, robot.Root)}}
	for _, a := range all {
		f.Events = append(f.Events, eventsOf(ctx, t, c, a)...)
		if !isRoot(a) {
			f.Agents = append(f.Agents, a)
			f.Unread[a.GetAgentId()] = unread(ctx, t, c, a.GetAgentId())
		}
	}
	slices.SortFunc(f.Events, func(a, b *agboxv1.AgentEvent) int { return cmp.Compare(a.GetPosition(), b.GetPosition()) })
	return f
}

// unread returns the messages in the inbox of an agent.
func unread(ctx context.Context, t *testing.T, c *client.Client, id string) (list []*agboxv1.AgentMessage) {
	t.Helper()
	for m, err := range c.Inbox(ctx, id) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

// holdOrphans holds the agents that the root has adopted without a holder. Nobody else would.
func holdOrphans(ctx context.Context, t *testing.T, c *client.Client, all []*agboxv1.Agent) {
	t.Helper()
	for _, a := range all {
		if a.GetWord() != "SUSPENDED" || a.GetParent() != robot.Root {
			continue
		}
		for _, err := range c.HoldAgent(ctx, client.AgentHold{Agent: a.GetAgentId(), Name: "test", Linger: time.Hour}) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	}
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

func TestASuspendedOrphanOfALongWorkEndsInTime(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in)
	plan := robot.Plan{Steps: 10, Seed: 13, Fanout: 3, Depth: 2, Pace: time.Hour, Holds: true}
	c, ctx := in.Client(t), harness.Bounded(t)
	root, err := c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: parental(plan), SandboxId: in.SandboxID(t, "demo")})
	if err != nil {
		t.Fatal(err)
	}
	// It lets go of its second child in its first step, and then does nothing for an hour.
	suspended := func(a *agboxv1.Agent) bool { return a.GetWord() == "SUSPENDED" && a.GetParent() == root.GetAgentId() }
	harness.Eventually(t, "a child is suspended", func() bool {
		all, err := c.ListAgents(ctx, &agboxv1.ListAgentsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, suspended)
	})
	if _, err := c.KillAgent(ctx, root.GetAgentId(), agboxv1.KillMode_KILL_MODE_NOW); err != nil {
		t.Fatal(err)
	}
	if err := folder.Hurry(); err != nil {
		t.Fatal(err)
	}
	everybody(ctx, t, c, folder, 4).Check(t)
}

func TestAFamilyOfThirteenHoldsAndTells(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in)
	plan := robot.Plan{Steps: 5, Seed: 13, Fanout: 3, Depth: 2, Deaths: 1, Stream: "news", Holds: true, Resources: 4}
	c, ctx := in.Client(t), harness.Bounded(t)
	if _, err := c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: parental(plan), SandboxId: in.SandboxID(t, "demo")}); err != nil {
		t.Fatal(err)
	}
	f := everybody(ctx, t, c, folder, 13)
	f.Check(t)
	claims := f.CheckClaims(t)
	t.Log(claims)
	if claims.Grants == 0 || claims.Conflicts == 0 || claims.Suspensions == 0 {
		t.Errorf("the robots did too little: %v", claims)
	}
	if len(f.Agents) != 13 {
		t.Errorf("there are %d agents; want 13", len(f.Agents))
	}
	for _, a := range f.Agents {
		folder.Story(t, a.GetAgentId()).CheckCompleted(t, a, plan)
	}
}
