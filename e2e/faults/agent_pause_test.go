package faults

import (
	"context"
	"fmt"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// asking is a program that waits for an approval and takes what changed before it goes on.
const asking = `set -e
	observation=$(agbox-agent pause approval)
	agbox-agent resumed ok "$(echo "$observation" | sed 's/.*"observation":\([0-9]*\).*/\1/')"
	agbox-agent done complete`

func TestKillAtManyBoundariesOfAPauseOfAnAgent(t *testing.T) {
	t.Parallel()
	row := Row(t, 57, "SIGKILL at every fourth boundary of a pause of an agent, its approval and its return", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	kills, calls := sweep(t, w.witness, operation{
		name: "pause",
		step: 4,
		run: func(ctx context.Context, n int) error {
			spec := &agboxv1.AgentSpec{Command: []string{"sh", "-c", asking}}
			if _, err := w.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id(n), Spec: spec, SandboxId: w.box}); err != nil {
				return err
			}
			if err := w.paused(ctx, id(n)); err != nil {
				return err
			}
			if err := w.approve(ctx, id(n)); err != nil {
				return err
			}
			return w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_COMPLETED)
		},
		verify: func(t *testing.T, k kill) { w.pausedOnce(t, id(k.n)) },
	})
	row.Ran(kills)
	row.Note("pause: before %s", calls)
	w.check(t)
}

// paused waits until an agent waits for an approval.
func (s workshop) paused(ctx context.Context, id string) error {
	for ev, err := range s.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if ev.GetPause().GetReason() == agboxv1.PauseReason_PAUSE_REASON_APPROVAL {
			return nil
		}
	}
	return fmt.Errorf("agent %s does not wait for an approval", id)
}

// approve approves. A client whose daemon died asks whether the decision counts.
func (s workshop) approve(ctx context.Context, id string) error {
	for ctx.Err() == nil {
		_, err := s.c.DecideAgent(ctx, id, agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE, "")
		if err == nil {
			return nil
		}
		a, lost := s.c.GetAgent(ctx, id)
		if lost != nil {
			return lost
		}
		if a.GetWord() != "WAITING_FOR_APPROVAL" || a.GetApproval() != 0 {
			return nil // it has gone on
		}
	}
	return ctx.Err()
}

// pausedOnce checks that an agent was paused, woken and resumed once, in one incarnation, and
// that it had taken the observation.
func (s workshop) pausedOnce(t *testing.T, id string) {
	t.Helper()
	a, err := s.c.GetAgent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[agboxv1.AgentEventType]int)
	woken := uint64(0)
	for ev, err := range s.c.WatchAgents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		counts[ev.GetType()]++
		switch ev.GetType() {
		case agboxv1.AgentEventType_AGENT_WOKEN:
			woken = ev.GetSequence()
		case agboxv1.AgentEventType_AGENT_RESUMED:
			if woken == 0 || ev.GetObservation() != woken {
				t.Errorf("agent %s went on with observation %d; want %d", id, ev.GetObservation(), woken)
			}
		}
		if ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	for _, typ := range []agboxv1.AgentEventType{agboxv1.AgentEventType_AGENT_PAUSED, agboxv1.AgentEventType_AGENT_WOKEN, agboxv1.AgentEventType_AGENT_RESUMED, agboxv1.AgentEventType_AGENT_BEGUN} {
		if counts[typ] != 1 {
			t.Errorf("agent %s has %d events %v; want 1", id, counts[typ], typ)
		}
	}
	if a.GetCrashes() != 0 {
		t.Errorf("agent %s has crashed", id)
	}
	s.checkEvents(t, id, a.GetLastSequence())
}
