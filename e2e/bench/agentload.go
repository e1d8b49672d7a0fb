package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/runtime"
)

const (
	// beside is how many agents work while the memory of their supervisor is looked at.
	beside = 10
	// waiting is how many agents wait, and perBox how many of them in each sandbox.
	waiting, perBox = 1000, 250
)

// memory measures the private memory of a supervisor: fresh, with commands, with agents.
func (b *agentBench) memory(ctx context.Context) error {
	engine, err := newEngine()
	if err != nil {
		return err
	}
	defer engine.Close()
	fmt.Println("private memory of a supervisor")
	for _, load := range []struct {
		what  string
		limit int64
		start func(box string, i int) error
	}{
		{"baseline: fresh", 0, func(string, int) error { return nil }},
		{fmt.Sprintf("baseline: with %d commands", beside), 0, func(box string, _ int) error {
			_, err := b.c.CreateExec(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"sleep", "100000"}})
			return err
		}},
		{fmt.Sprintf("with %d agents that report every second", beside), 3_500_000, func(box string, i int) error {
			_, err := b.spawn(ctx, box, &agboxv1.AgentSpec{Command: []string{"/robot/robot", "-steps", "1000000", "-pace", "1s", "-beat", "1s", "-seed", strconv.Itoa(i)}})
			return err
		}},
	} {
		box, err := b.sandbox(ctx)
		if err != nil {
			return err
		}
		for i := range beside {
			if err := load.start(box, i); err != nil {
				return err
			}
		}
		time.Sleep(10 * time.Second)
		seen, err := engine.ContainerInspect(ctx, runtime.PrimaryName(box))
		if err != nil {
			return err
		}
		used, err := privateMemory(seen.State.Pid)
		if err != nil {
			return err
		}
		verdict := ""
		switch {
		case load.limit > 0 && used > load.limit:
			verdict = fmt.Sprintf("   aim %.1f MB: MISSED", float64(load.limit)/1e6)
		case load.limit > 0:
			verdict = fmt.Sprintf("   aim %.1f MB: reached", float64(load.limit)/1e6)
		}
		fmt.Printf("  %-44s %10.2f MB%s\n", load.what, float64(used)/1e6, verdict)
		if err := b.c.DeleteSandbox(ctx, box); err != nil {
			return err
		}
		if err := b.c.WaitDeleted(ctx, box); err != nil {
			return err
		}
	}
	return nil
}

// privateMemory returns the bytes of memory that the process has written. The pages of its
// program are shared by all sandboxes.
func privateMemory(pid int) (int64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Private_Dirty:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d does not say how much memory it has", pid)
}

// waiting measures a daemon with many agents that wait for a retry.
func (b *agentBench) waiting(ctx context.Context, agbox func(...string) error) error {
	pong, err := b.c.Ping(ctx)
	if err != nil {
		return err
	}
	idle, err := weigh(int(pong.GetPid()))
	if err != nil {
		return err
	}
	boxes := make([]string, waiting/perBox)
	for i := range boxes {
		if boxes[i], err = b.sandbox(ctx); err != nil {
			return err
		}
	}
	begun := time.Now()
	err = each(makers, waiting, func(i int) error {
		id, err := b.spawn(ctx, boxes[i%len(boxes)], &agboxv1.AgentSpec{
			Command: []string{"false"}, Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(time.Hour)}},
		})
		if err != nil {
			return err
		}
		return b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool { return ev.GetState() == agboxv1.AgentState_AGENT_STATE_PAUSED })
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d agents that wait after a crash, made in %.1f s\n", waiting, time.Since(begun).Seconds())
	time.Sleep(restTime)
	w, err := weigh(int(pong.GetPid()))
	if err != nil {
		return err
	}
	fmt.Printf("  CPU of the daemon in a second %v, before them %v; memory %.0f MB, before %.0f MB\n", w.cpu, idle.cpu, float64(w.rss)/1e6, float64(idle.rss)/1e6)
	return b.restarts(ctx, agbox, boxes[0])
}

// restarts measures from a SIGKILL of the daemon until all agents are shown and a new one
// has worked.
func (b *agentBench) restarts(ctx context.Context, agbox func(...string) error, box string) error {
	var empty, served figures
	for range recoveryRounds {
		pong, err := b.c.Ping(ctx)
		if err != nil {
			return err
		}
		begun := time.Now()
		if err := kill(int(pong.GetPid())); err != nil {
			return err
		}
		if err := agbox("daemon", "start"); err != nil {
			return err
		}
		all, err := b.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{})
		if err != nil || len(all) != waiting {
			return fmt.Errorf("%d agents are listed after a restart, want %d: %w", len(all), waiting, err)
		}
		empty = append(empty, time.Since(begun))
		if _, err := b.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}}, io.Discard, io.Discard); err != nil {
			return err
		}
		served = append(served, time.Since(begun))
	}
	fmt.Printf("  after SIGKILL and start, %d times\n", recoveryRounds)
	fmt.Printf("  %-44s %s\n", "until all agents are listed", empty)
	aim("until a new command has run beside them", served, time.Second)
	return nil
}
