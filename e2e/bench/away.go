package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

const (
	// robots is how many agents work while there is no daemon, for the time away.
	robots = 20
	absent = 10 * time.Minute
)

// away kills the daemon under agents that work and beat, and starts it again after a time.
func (b *agentBench) away(ctx context.Context, agbox func(...string) error) error {
	var ids []string
	for i := range robots {
		id, err := b.work(ctx, &agboxv1.AgentSpec{Heartbeat: &agboxv1.AgentHeartbeat{Required: true}},
			"-steps", "100000", "-pace", "2s", "-beat", "10s", "-seed", strconv.Itoa(i))
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	pong, err := b.c.Ping(ctx)
	if err != nil {
		return err
	}
	if err := kill(int(pong.GetPid())); err != nil {
		return err
	}
	if err := rest(ctx, absent); err != nil {
		return errors.Join(err, agbox("daemon", "start"))
	}
	steps := make(map[string]uint64)
	for _, id := range ids {
		if steps[id], err = b.reportedSteps(id); err != nil {
			return err
		}
		if expected := uint64(absent / (3 * time.Second)); steps[id] < expected {
			return fmt.Errorf("agent %s has done %d steps in %v without a daemon", id, steps[id], absent)
		}
	}
	if err := agbox("daemon", "start"); err != nil {
		return err
	}
	begun := time.Now()
	for _, id := range ids {
		if err := b.caughtUp(ctx, id, steps[id]); err != nil {
			return err
		}
	}
	took := time.Since(begun)
	if err := rest(ctx, time.Minute); err != nil { // for the false alarms of a new daemon
		return err
	}
	for _, id := range ids {
		if err := b.unharmed(ctx, id); err != nil {
			return err
		}
	}
	fmt.Printf("  %d agents went on for %v without a daemon: all steps recorded %.1f s after its start, no alarm, no crash\n", robots, absent, took.Seconds())
	return nil
}

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reportedSteps returns how many steps of an agent were acknowledged.
func (b *agentBench) reportedSteps(id string) (steps uint64, err error) {
	entries, err := diary.Read(diary.Name(b.folder, id))
	for _, e := range entries {
		if e.What == diary.Ack {
			steps = max(steps, e.Steps)
		}
	}
	return steps, err
}

// caughtUp waits until so many steps of an agent are recorded.
func (b *agentBench) caughtUp(ctx context.Context, id string, steps uint64) error {
	for ev, err := range b.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if ev.GetProgress().GetSteps() >= steps {
			return nil
		}
	}
	return ctx.Err()
}

// unharmed checks that nothing but work and progress happened to an agent.
func (b *agentBench) unharmed(ctx context.Context, id string) error {
	a, err := b.c.GetAgent(ctx, id)
	if err != nil {
		return err
	}
	if a.GetCrashes() != 0 || a.GetIncarnation() != 1 || !a.GetRunning() {
		return fmt.Errorf("agent %s did not simply go on: %v", id, a)
	}
	for ev, err := range b.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if g := ev.GetGauge(); g != nil && g.GetLiveness() != agboxv1.AgentLiveness_AGENT_LIVENESS_ACTIVE {
			return fmt.Errorf("agent %s: a false alarm: %v", id, ev)
		}
		if ev.GetSequence() >= a.GetLastSequence() {
			return nil
		}
	}
	return ctx.Err()
}

// create makes an empty file in a folder that any user may read.
func create(folder, name string) error {
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o644), f.Close())
}

func remove(folder, name string) error { return os.Remove(filepath.Join(folder, name)) }
