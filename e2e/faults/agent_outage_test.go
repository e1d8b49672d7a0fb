package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// employ spawns agents of one class and waits until each works and waits at its gate.
func employ(t *testing.T, shops []workshop, number int, p robot.Plan) (ids []string) {
	t.Helper()
	for i := range number {
		id := fmt.Sprintf("r-%d", i)
		err := shops[i%len(shops)].spawn(harness.Bounded(t), id, p, func(spec *agboxv1.AgentSpec) { spec.Class = "coder" })
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for i, id := range ids {
		harness.Eventually(t, "robot "+id+" waits", func() bool { return shops[i%len(shops)].folder.Story(t, id).Effects() == p.WaitAt-1 })
	}
	return ids
}

// finish opens the gates and checks that each agent completes its work without a crash.
func finish(t *testing.T, shops []workshop, ids []string, p robot.Plan, incarnations int) {
	t.Helper()
	for _, s := range shops {
		if err := s.folder.Go(); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		s := shops[i%len(shops)]
		if err := s.await(harness.Bounded(t), id, agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
			t.Fatal(err)
		}
		s.completed(t, id, p, 0)
		if ran := s.folder.Story(t, id).Count(diary.Begin); ran != incarnations {
			t.Errorf("the program of agent %s ran %d times; want %d", id, ran, incarnations)
		}
	}
}

// wantNoBreaker checks that no class has a crash.
func wantNoBreaker(t *testing.T, w *witness) {
	t.Helper()
	all, err := w.c.ListAgents(harness.Bounded(t), &agboxv1.ListAgentsRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.GetName() == "init" || a.GetAgentId() == "init" {
			t.Errorf("a crash of a class is recorded: %v", a)
		}
	}
}

func TestAnEngineRestartIsNoCrashOfItsAgents(t *testing.T) {
	t.Parallel()
	const number = 30
	row := Row(t, 52, "dockerd killed, live-restore off, under agents of one class", number)
	p, in := private(t)
	w := newWitness(t, in)
	shops := []workshop{newWorkshop(t, w), newWorkshop(t, w), newWorkshop(t, w)}
	plan := robot.Plan{Steps: 4, Seed: 9, WaitAt: 3}
	ids := employ(t, shops, number, plan)
	p.Kill(t)
	awaitDegraded(t, w.c, shops[0].box)
	p.Start(t)
	since := time.Now()
	for i, id := range ids {
		harness.Eventually(t, "agent "+id+" is back", func() bool { return shops[i%len(shops)].folder.Story(t, id).Count(diary.Begin) == 2 })
	}
	row.Note("all agents work again %v after the engine's start", time.Since(since).Round(100*time.Millisecond))
	finish(t, shops, ids, plan, 2)
	wantNoBreaker(t, w)
	w.check(t)
}

func TestAgentsGoOnWhileThereIsNoDaemon(t *testing.T) {
	t.Parallel()
	const number = 20
	Row(t, 53, "no daemon while agents work: what they report then is recorded later", number)
	w := newWitness(t, harness.New(t))
	shops := []workshop{newWorkshop(t, w), newWorkshop(t, w)}
	// They must beat, and the ladder is shorter than the time without a daemon.
	plan := robot.Plan{Steps: 20, Seed: 4, WaitAt: 3, Beat: 100 * time.Millisecond, Pace: 200 * time.Millisecond}
	ids := employ(t, shops, number, plan)
	w.kill(t)
	for _, s := range shops {
		if err := s.folder.Go(); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		harness.Eventually(t, "robot "+id+" works on", func() bool { return shops[i%len(shops)].folder.Story(t, id).Effects() >= 15 })
	}
	w.in.Must(t, "daemon", "start")
	finish(t, shops, ids, plan, 1)
	wantNoBreaker(t, w)
	w.check(t)
}
