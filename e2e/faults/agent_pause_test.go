package faults

import (
	"context"
	"fmt"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// asking is a program that waits for an approval and takes what changed before it goes on.
// After a denial it plans anew. It holds a resource meanwhile.
const asking = `set -e
	agbox-agent acquire "r-$AGBOX_AGENT_ID"
	observation=$(agbox-agent pause approval)
	number=$(echo "$observation" | sed 's/.*"observation":\([0-9]*\).*/\1/')
	case $observation in
	*DENIED*) agbox-agent resumed replan $number; agbox-agent phase EXECUTING ;;
	*) agbox-agent resumed ok $number ;;
	esac
	agbox-agent done complete`

// unaware is a program that only asks before each call, until it was refused and allowed one.
const unaware = `
	agbox-agent say up
	while agbox-agent gate Bash 2> /tmp/$AGBOX_AGENT_ID; do sleep 0.02; done
	until agbox-agent gate Bash 2>> /tmp/$AGBOX_AGENT_ID; do sleep 0.02; done
	grep -q '"approval":"APPROVED"' /tmp/$AGBOX_AGENT_ID && agbox-agent done complete`

func TestKillAtManyBoundariesOfAPauseOfAnAgent(t *testing.T) {
	t.Parallel()
	sweepPause(t, "an approval", "pause, approve, resumed ok", asking, 4, func(ctx context.Context, w workshop, id string) error {
		if err := w.paused(ctx, id); err != nil {
			return err
		}
		return w.decide(ctx, id, agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE)
	}, 0)
}

func TestKillAtManyBoundariesOfADenial(t *testing.T) {
	t.Parallel()
	sweepPause(t, "a denial", "pause, deny, resumed replan", asking, 8, func(ctx context.Context, w workshop, id string) error {
		if err := w.paused(ctx, id); err != nil {
			return err
		}
		return w.decide(ctx, id, agboxv1.AgentVerdict_AGENT_VERDICT_DENY)
	}, 1)
}

func TestKillAtManyBoundariesOfAPauseFromOutside(t *testing.T) {
	t.Parallel()
	sweepPause(t, "a pause from outside", "agent pause, approve, a refused call", unaware, 8, func(ctx context.Context, w workshop, id string) error {
		if err := w.working(ctx, id); err != nil {
			return err
		}
		if err := w.pause(ctx, id); err != nil {
			return err
		}
		return w.decide(ctx, id, agboxv1.AgentVerdict_AGENT_VERDICT_APPROVE)
	}, 0)
}

// sweepPause kills the daemon at boundaries from the spawn of an agent over its pause to its
// end, every step-th in a run of all tests. decide pauses it, if its program does not, and
// decides. released is how often it gives its leases back before its end.
func sweepPause(t *testing.T, what, steps, program string, step int, decide func(ctx context.Context, w workshop, id string) error, released int) {
	row := Row(t, 57, fmt.Sprintf("SIGKILL at boundaries of %s: %s", what, steps), 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	kills, calls := sweep(t, w.witness, operation{
		name: what, step: step,
		run: func(ctx context.Context, n int) error {
			spec := &agboxv1.AgentSpec{Command: []string{"sh", "-c", program}}
			if _, err := w.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id(n), Spec: spec, SandboxId: w.box}); err != nil {
				return err
			}
			if err := decide(ctx, w, id(n)); err != nil {
				return err
			}
			return w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_COMPLETED)
		},
		verify: func(t *testing.T, k kill) { w.pausedOnce(t, id(k.n), released) },
	})
	row.Ran(kills)
	row.Note("%s: before %s", what, calls)
	w.check(t)
}

// working waits until the program of an agent has said so. One that says nothing goes on by
// itself after a pause.
func (s workshop) working(ctx context.Context, id string) error {
	for ev, err := range s.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if ev.GetProgress().GetLastMessage() == "up" {
			return nil
		}
	}
	return fmt.Errorf("agent %s does not work", id)
}

// pause pauses an agent. A client whose daemon died asks whether it is paused.
func (s workshop) pause(ctx context.Context, id string) error {
	for ctx.Err() == nil {
		if _, err := s.c.PauseAgent(ctx, id, ""); err == nil {
			return nil
		}
		a, lost := s.c.GetAgent(ctx, id)
		if lost != nil {
			return lost
		}
		if a.GetWord() == "WAITING_FOR_APPROVAL" {
			return nil
		}
	}
	return ctx.Err()
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

// decide approves or denies. A client whose daemon died asks whether the decision counts.
func (s workshop) decide(ctx context.Context, id string, verdict agboxv1.AgentVerdict) error {
	for ctx.Err() == nil {
		_, err := s.c.DecideAgent(ctx, id, verdict, "")
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
// that it had taken the observation. Before its end it has released its leases as often as that.
func (s workshop) pausedOnce(t *testing.T, id string, released int) {
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
			if counts[agboxv1.AgentEventType_AGENT_RELEASED] != 0 {
				t.Errorf("agent %s released its leases before it went on", id)
			}
			if woken == 0 || ev.GetObservation() != woken {
				t.Errorf("agent %s went on with observation %d; want %d", id, ev.GetObservation(), woken)
			}
		}
		if ev.GetType() == agboxv1.AgentEventType_AGENT_DONE_REPORTED && counts[agboxv1.AgentEventType_AGENT_RELEASED] != released {
			t.Errorf("agent %s released its leases %d times before its end; want %d", id, counts[agboxv1.AgentEventType_AGENT_RELEASED], released)
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
