package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// holding is a program that works until it is drained, or until it may end.
const holding = `echo '{"n":1}' | agbox-agent checkpoint || exit 90
	until [ -e /var/log/agents-sandbox/$AGBOX_AGENT_ID.end ]; do agbox-agent drained > /dev/null || exit 75; sleep 0.02; done
	agbox-agent done complete`

// spawnHeld spawns an agent that lives while it is held. A client holds it that is not
// connected, so its hold lingers.
func (w *witness) spawnHeld(ctx context.Context, box, id string) error {
	spec := &agboxv1.AgentSpec{Command: []string{"sh", "-c", holding}, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}
	_, err := w.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id, Spec: spec, SandboxId: box, Hold: "first"})
	return err
}

// end lets an agent end.
func (w *witness) end(box, id string) error {
	return os.WriteFile(filepath.Join(w.logs(box), id+".end"), nil, 0o600)
}

// TestKillAtManyBoundariesOfHolds also holds one agent through all kills.
func TestKillAtManyBoundariesOfHolds(t *testing.T) {
	t.Parallel()
	row := Row(t, 58, "SIGKILL while a held agent is let go, suspended, held again and goes on", 0)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	if err := w.spawnHeld(harness.Bounded(t), box, "kept"); err != nil {
		t.Fatal(err)
	}
	held, over := make(chan struct{}), make(chan error, 1)
	go func() {
		over <- w.holdUntilOver(t.Context(), client.AgentHold{Agent: "kept", Name: "first", Linger: 10 * time.Minute}, func() { close(held) })
	}()
	<-held
	kills, calls := sweep(t, w, operation{
		name: "hold",
		step: 8,
		run: func(ctx context.Context, n int) error {
			if err := w.spawnHeld(ctx, box, id(n)); err != nil {
				return err
			}
			if err := w.began(ctx, id(n)); err != nil {
				return err
			}
			if _, err := w.c.CloseHold(ctx, id(n), "first"); err != nil {
				return err
			}
			if a, err := w.c.WaitAgentHalted(ctx, id(n)); err != nil || a.GetWord() != "SUSPENDED" {
				return fmt.Errorf("agent %s is %v: %w", id(n), a, err)
			}
			if err := w.end(box, id(n)); err != nil {
				return err
			}
			return w.holdUntilOver(ctx, client.AgentHold{Agent: id(n), Name: "second"}, func() {})
		},
		dead: func(t *testing.T, _ int) { w.checkStored(t) },
		verify: func(t *testing.T, k kill) {
			a, err := w.c.GetAgent(harness.Bounded(t), id(k.n))
			if err != nil {
				t.Fatal(err)
			}
			if a.GetWord() != "COMPLETED" || a.GetIncarnation() != 2 || a.GetCrashes() != 0 {
				t.Errorf("agent %s is %v", id(k.n), a)
			}
			w.wantCounts(t, a, map[agboxv1.AgentEventType]int{
				agboxv1.AgentEventType_AGENT_OPENED: 2, agboxv1.AgentEventType_AGENT_CLOSED: 1, agboxv1.AgentEventType_AGENT_WOKEN: 1,
				agboxv1.AgentEventType_AGENT_BEGUN: 2, agboxv1.AgentEventType_AGENT_INCARNATION_ENDED: 2,
			})
		},
	})
	if err := w.end(box, "kept"); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	a, err := w.c.GetAgent(harness.Bounded(t), "kept")
	if err != nil {
		t.Fatal(err)
	}
	w.wantCounts(t, a, map[agboxv1.AgentEventType]int{
		agboxv1.AgentEventType_AGENT_CLOSED: 0, agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED: 0, agboxv1.AgentEventType_AGENT_BEGUN: 1,
	})
	row.Ran(kills)
	row.Note("hold: before %s", calls)
	w.check(t)
}

// holdUntilOver holds an agent until it has ended. held is called when the hold has begun.
func (w *witness) holdUntilOver(ctx context.Context, h client.AgentHold, held func()) error {
	var a *agboxv1.Agent
	for now, err := range w.c.HoldAgent(ctx, h) {
		if err != nil {
			return err
		}
		if a == nil {
			held()
		}
		a = now
	}
	if a.GetWord() != "COMPLETED" {
		return fmt.Errorf("agent %s is %s (%s)", h.Agent, a.GetWord(), a.GetMessage())
	}
	return nil
}

// began waits until an agent works.
func (w *witness) began(ctx context.Context, id string) error {
	for ev, err := range w.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if ev.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING {
			return nil
		}
	}
	return ctx.Err()
}
