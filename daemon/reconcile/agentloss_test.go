package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/store"
)

// alone is what agents need that nobody holds.
type alone struct{ Agents }

func (alone) Describe(context.Context, ledger.Agent) error { return nil }

func (alone) LostHolder(ledger.Agent) (string, time.Time) { return "", time.Time{} }

// TestEachDecisionThatAnAgentGoesOnIsTried: the container may be back by then. If it is not, the agent
// is ORPHANED again after one attempt.
func TestEachDecisionThatAnAgentGoesOnIsTried(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, unlinked{})
	l.agents, l.now, l.agentsAtWork = alone{}, time.Now, make(map[string]*agentWork)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	fail := func() {
		t.Helper()
		sb, _ := b.Ledger.Sandbox("a")
		_, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{
			EventType: agboxv1.EventType_SANDBOX_FAILED,
			Details: &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{
				ErrorCode: agboxv1.ErrorReason_PRIMARY_MISSING.String(), ErrorMessage: "It is gone.",
			}},
		})
		must(err)
	}
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "x", SandboxID: "a", Spec: &agboxv1.AgentSpec{
		Command: []string{"true"}, Revival: agboxv1.AgentRevival_AGENT_REVIVAL_ASK,
	}})
	must(err)
	_, err = b.Ledger.EmitAgent(t.Context(), a.Record,
		&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{SandboxId: "a", ExecId: "x"}}},
		&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
			Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST,
		}}})
	must(err)
	fail()
	l.agentRound(t.Context(), "x")
	for n := range 3 {
		if a, _ = b.Ledger.Agent("x"); !a.Orphaned() || a.Pause.Woken {
			t.Fatalf("before decision %d it is %s: %+v", n+1, a.Word(), a.Pause)
		}
		_, err := b.Ledger.ResolveAgent(t.Context(), "x", agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE)
		must(err)
		l.agentRound(t.Context(), "x")
		if sb, _ := b.Ledger.Sandbox("a"); sb.State != machine.Pending {
			t.Fatalf("after decision %d the sandbox is %v", n+1, sb.State)
		}
		fail()
		l.agentRound(t.Context(), "x")
	}
}

// crowd are the agents of a sandbox that failed, in an install with a clock of its own.
type crowd struct {
	t       *testing.T
	dir     string
	now     time.Time
	ids     []string
	reason  agboxv1.ErrorReason
	book    *ledger.Ledger
	loop    *Loop
	closeDB func()
	// attempts is how often the sandbox was asked for.
	attempts int
}

// start is the start of a daemon.
func (c *crowd) start() {
	c.t.Helper()
	install := paths.Install{Data: c.dir, Config: c.dir, Run: c.dir}
	db, err := store.Open(c.t.Context(), store.Options{Path: install.Database(), Sentinel: install.Sentinel()})
	c.must(err)
	c.closeDB = func() { _ = db.Close() }
	clock, log := func() time.Time { return c.now }, slog.New(slog.DiscardHandler)
	c.book, err = ledger.Open(c.t.Context(), db, clock, log)
	c.must(err)
	all := newWorkers(time.Now, func(context.Context, *workTurn) time.Time { return time.Time{} })
	ctx, stop := context.WithCancel(c.t.Context())
	c.t.Cleanup(all.Wait)
	c.t.Cleanup(stop)
	all.Begin(ctx)
	c.loop = &Loop{
		ledger: c.book, links: unlinked{}, log: log, workers: all, sandboxes: make(map[string]*sandboxWork),
		agents: alone{}, now: clock, agentsAtWork: make(map[string]*agentWork),
	}
}

func (c *crowd) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *crowd) emit(typ agboxv1.EventType) {
	c.t.Helper()
	sb, _ := c.book.Sandbox("a")
	ev := &agboxv1.SandboxEvent{EventType: typ}
	if typ == agboxv1.EventType_SANDBOX_FAILED {
		ev.Details = &agboxv1.SandboxEvent_SandboxPhase{SandboxPhase: &agboxv1.SandboxPhaseDetails{ErrorCode: c.reason.String(), ErrorMessage: "It does not start."}}
	}
	_, err := c.book.Emit(c.t.Context(), sb.Record, ev)
	c.must(err)
}

// loseAll spawns agents, whose programs are lost with the container.
func (c *crowd) loseAll(n int) {
	c.t.Helper()
	_, err := c.book.Create(c.t.Context(), "a", &agboxv1.CreateSpec{Image: "img"})
	c.must(err)
	c.emit(agboxv1.EventType_SANDBOX_READY)
	for i := range n {
		id := fmt.Sprintf("x%d", i)
		a, err := c.book.SpawnAgent(c.t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
		c.must(err)
		_, err = c.book.EmitAgent(c.t.Context(), a.Record,
			&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1, Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{SandboxId: "a", ExecId: id}}},
			&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
				Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST,
			}}})
		c.must(err)
		c.ids = append(c.ids, id)
	}
	c.emit(agboxv1.EventType_SANDBOX_FAILED)
}

// live lets time pass. Each start of the sandbox takes a second and fails.
func (c *crowd) live(d time.Duration) {
	c.t.Helper()
	for end := c.now.Add(d); c.now.Before(end); {
		next := end
		for _, id := range c.ids {
			wake := c.loop.agentRound(c.t.Context(), id)
			if sb, _ := c.book.Sandbox("a"); sb.State == machine.Pending {
				if c.attempts++; c.attempts > 1000 {
					c.t.Fatalf("%s, %d agents: 1000 attempts until %v", c.reason, len(c.ids), c.now)
				}
				c.now = c.now.Add(time.Second)
				c.emit(agboxv1.EventType_SANDBOX_FAILED)
				wake = c.now // the end of the attempt is followed by a round
			}
			if !wake.IsZero() && wake.Before(next) {
				next = wake
			}
		}
		if next.After(c.now) {
			c.now = next
		}
	}
}

// TestTheAgentsOfALostSandboxShareItsAttempts: a sandbox that cannot be started is asked for ever more
// seldom, however many agents wait for it and however often the daemon is restarted.
func TestTheAgentsOfALostSandboxShareItsAttempts(t *testing.T) {
	for _, row := range []struct {
		reason   agboxv1.ErrorReason
		agents   int
		min, max int
	}{
		{agboxv1.ErrorReason_PRIMARY_EXITED, 1, 24, 40},
		{agboxv1.ErrorReason_PRIMARY_EXITED, 10, 24, 40},
		{agboxv1.ErrorReason_PRIMARY_MISSING, 10, 0, 0},
	} {
		c := &crowd{t: t, dir: t.TempDir(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), reason: row.reason}
		c.start()
		c.loseAll(row.agents)
		for range 6 {
			c.live(4 * time.Hour)
			c.closeDB()
			c.start()
		}
		t.Cleanup(c.closeDB)
		if c.attempts < row.min || c.attempts > row.max {
			t.Errorf("%s, %d agents: the sandbox was asked for %d times in a day; want %d to %d", row.reason, row.agents, c.attempts, row.min, row.max)
		}
		for _, id := range c.ids {
			if a, _ := c.book.Agent(id); !a.Unasked() || !a.Pause.Stranded || a.LastSequence > 5 {
				t.Errorf("%s, %d agents: after a day agent %s is %s after %d events: %+v", row.reason, row.agents, id, a.Word(), a.LastSequence, a.Pause)
			}
		}
		_, err := c.book.ResolveAgent(t.Context(), c.ids[0], agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE)
		c.must(err)
		c.loop.agentRound(t.Context(), c.ids[0])
		if sb, _ := c.book.Sandbox("a"); sb.State != machine.Pending {
			t.Errorf("%s, %d agents: somebody has revived an agent, and the sandbox is %s", row.reason, row.agents, sb.State)
		}
	}
}
