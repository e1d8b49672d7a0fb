package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestKillAtManyBoundariesOfTheLifeOfAnAgent(t *testing.T) {
	t.Parallel()
	row := Row(t, 49, "SIGKILL at boundaries from the spawn of an agent through a crash to its end", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	plan := robot.Plan{Steps: 2, Seed: 5, Checkpoint: 1000, Die: "1@7:exit3"}
	kills, calls := sweep(t, w.witness, operation{
		name: "agent",
		step: 4, // of about 40
		run: func(ctx context.Context, n int) error {
			if err := w.spawn(ctx, id(n), plan); err != nil {
				return err
			}
			return w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_COMPLETED)
		},
		verify: func(t *testing.T, k kill) { w.completed(t, id(k.n), plan, 1) },
	})
	row.Ran(kills)
	row.Note("agent: before %s", calls)
	w.check(t)
}

func TestKillAtManyBoundariesOfAKillOfAnAgent(t *testing.T) {
	t.Parallel()
	row := Row(t, 50, "SIGKILL at boundaries of a kill and a removal of an agent", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	plan := robot.Plan{Steps: 2, Seed: 5, WaitAt: 2}
	kills, calls := sweep(t, w.witness, operation{
		name: "kill and removal",
		step: 4, // of about 20
		prepare: func(t *testing.T, n int) {
			if err := w.spawn(harness.Bounded(t), id(n), plan); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the robot waits", func() bool { return w.folder.Story(t, id(n)).Effects() == 1 })
		},
		run: func(ctx context.Context, n int) error {
			if _, err := w.c.KillAgent(ctx, id(n), agboxv1.KillMode_KILL_MODE_NOW); err != nil {
				return err
			}
			if err := w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_ABORTED); err != nil {
				return err
			}
			a, err := w.c.GetAgent(ctx, id(n))
			if err != nil {
				return err
			}
			w.folder.Story(t, id(n)).Check(t, a)
			if a.GetCrashes() != 0 || a.GetIncarnation() != 1 {
				return fmt.Errorf("agent %s was killed after %d crashes and %d incarnations", id(n), a.GetCrashes(), a.GetIncarnation())
			}
			if err := w.c.DeleteAgent(ctx, id(n)); err != nil {
				return err
			}
			return w.gone(ctx, id(n))
		},
	})
	row.Ran(kills)
	row.Note("kill and removal: before %s", calls)
	w.check(t)
}

// TestAnAgentDiesAtEachReport kills the program of an agent before and after each report is
// sent.
func TestAnAgentDiesAtEachReport(t *testing.T) {
	t.Parallel()
	row := Row(t, 51, "the program of an agent dies before and after it sends each report", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	const reports = 13 // those of two steps
	plans := make(map[string]robot.Plan)
	for report := 1; report <= reports; report++ {
		for i, moment := range []string{"", "+"} {
			id := fmt.Sprintf("r-%d-%d", report, i)
			plans[id] = robot.Plan{Steps: 2, Seed: uint64(report), Checkpoint: 1000, Die: fmt.Sprintf("1@%d%s:kill", report, moment)}
			if err := w.spawn(harness.Bounded(t), id, plans[id]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for id, plan := range plans {
		if err := w.await(harness.Bounded(t), id, agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
			t.Fatal(err)
		}
		a, err := w.c.GetAgent(harness.Bounded(t), id)
		if err != nil {
			t.Fatal(err)
		}
		// The last report is the outcome: sent before the death, it may count or not.
		crashes := uint32(1)
		if plan.Die == fmt.Sprintf("1@%d+:kill", reports) {
			crashes = a.GetCrashes()
		}
		w.completed(t, id, plan, crashes)
	}
	row.Ran(len(plans))
	w.check(t)
}

func TestAnAgentGoesOnWhenItsSupervisorDiesInAWrite(t *testing.T) {
	t.Parallel()
	row := Row(t, 54, "SIGKILL of agbox-init at boundaries of reports of an agent", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	plan := robot.Plan{Steps: 3, Seed: 6, Checkpoint: 1000, WaitAt: 2}
	seen := make(map[string]int)
	first, step := shareOf(t, operation{name: "reports", step: 4})
	for n := first; n < mostBoundaries; n += step {
		id := fmt.Sprintf("a-%d", n)
		if err := w.spawn(harness.Bounded(t), id, plan); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the robot waits", func() bool { return w.folder.Story(t, id).Effects() == 1 })
		tr, killed := traceAndKill(t, w.pidInside(t, w.box), n, ""), make(chan string, 1)
		go func() { killed <- tr.killed() }() // ends with the tracer
		if err := w.folder.Go(id); err != nil {
			t.Fatal(err)
		}
		err := w.await(harness.Bounded(t), id, agboxv1.AgentState_AGENT_STATE_COMPLETED)
		tr.end()
		before := <-killed
		if err != nil {
			t.Fatalf("with a kill at boundary %d (%s): %v", n, before, err)
		}
		w.completed(t, id, plan, 0)
		if before == "" {
			break
		}
		seen[before]++
	}
	// A share may have boundaries of one kind only: a report repeats the same few calls.
	if all := step == 1; all && (seen["fdatasync"] == 0 || seen["send"] == 0) {
		t.Errorf("agbox-init was killed before %s; want it in journal writes and answers", counted(seen))
	}
	kills := 0
	for _, times := range seen {
		kills += times
	}
	row.Ran(kills)
	row.Note("agbox-init: before %s", counted(seen))
	w.check(t)
}

func TestKillAtManyBoundariesOfADrainOfAnAgent(t *testing.T) {
	t.Parallel()
	row := Row(t, 55, "SIGKILL at boundaries of a stop that drains an agent, and of the next start", 0)
	w := newWorkshop(t, newWitness(t, harness.New(t)))
	id := func(n int) string { return fmt.Sprintf("a-%d", n) }
	// Its beats tell it of the drain.
	plan := robot.Plan{Steps: 3, Seed: 5, WaitAt: 2, Beat: 50 * time.Millisecond}
	kills, calls := sweep(t, w.witness, operation{
		name: "drain",
		step: 8, // of about 80
		prepare: func(t *testing.T, n int) {
			if err := w.spawn(harness.Bounded(t), id(n), plan); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the robot waits", func() bool { return w.folder.Story(t, id(n)).Effects() == 1 })
		},
		run: func(ctx context.Context, n int) error {
			if err := w.c.StopSandbox(ctx, w.box); err != nil {
				return err
			}
			if _, err := w.c.WaitStopped(ctx, w.box); err != nil {
				return err
			}
			if err := w.folder.Go(id(n)); err != nil {
				return err
			}
			if err := w.c.ResumeSandbox(ctx, w.box); err != nil {
				return err
			}
			return w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_COMPLETED)
		},
		verify: func(t *testing.T, k kill) {
			w.completed(t, id(k.n), plan, 0)
			if ran := w.folder.Story(t, id(k.n)).Count(diary.Begin); ran != 2 {
				t.Errorf("the program of agent %s ran %d times; want 2", id(k.n), ran)
			}
		},
	})
	row.Ran(kills)
	row.Note("drain: before %s", calls)
	w.check(t)
}
