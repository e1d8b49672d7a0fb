package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
)

const (
	// ended is how many agents have ended. AGBOX_BENCH_ENDED sets another number.
	ended = 10_000
	// living is how many live beside them, 20 less than there may be.
	living = 980
	// atRest is how long the processor time of a daemon at rest is measured: six resyncs and a
	// pass of retention. quiet is how long it has before that to remove what is too much.
	atRest, quiet = time.Minute, 75 * time.Second
	// spawnAim is how much longer a spawn may take beside all of them, and listAim how long a
	// list of those that live may take.
	spawnAim = 1.5
	listAim  = 100 * time.Millisecond
	// restAim is the part of a core that the daemon may take at rest.
	restAim = 0.005
)

// benchMany measures what agents that have ended, and those that wait, cost a daemon.
func benchMany(ctx context.Context) error {
	count := ended
	if text := os.Getenv("AGBOX_BENCH_ENDED"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			return err
		}
	}
	return withInstall(func(c *client.Client, agbox func(...string) error) (err error) {
		config := fmt.Sprintf("max-agents: %d\nkeep-agents: 240h\n", 2*ended)
		install, err := paths.FromEnv()
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(install.Config, 0o700), os.WriteFile(install.ConfigFile(), []byte(config), 0o600)); err != nil {
			return err
		}
		if err := errors.Join(agbox("daemon", "stop"), agbox("daemon", "start")); err != nil {
			return err
		}
		b := &agentBench{c: c}
		boxes := make([]string, waiting/perBox)
		for i := range boxes {
			sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: image}})
			if err != nil {
				return err
			}
			if _, err := c.WaitReady(ctx, sb.GetSandboxId()); err != nil {
				return err
			}
			boxes[i] = sb.GetSandboxId()
		}
		b.box = boxes[0]
		return b.many(ctx, boxes, count)
	})
}

func (b *agentBench) many(ctx context.Context, boxes []string, count int) error {
	if err := b.end(ctx, boxes, 10); err != nil {
		return err
	}
	few, err := b.costs(ctx, "10 agents that have ended")
	if err != nil {
		return err
	}
	if err := b.end(ctx, boxes, count-10); err != nil {
		return err
	}
	over, err := b.costs(ctx, fmt.Sprintf("%d agents that have ended", count))
	if err != nil {
		return err
	}
	if err := each(makers, living, func(i int) error {
		id, err := b.spawn(ctx, boxes[i%len(boxes)], &agboxv1.AgentSpec{
			Command: []string{"false"}, Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(time.Hour)}},
		})
		if err != nil {
			return err
		}
		return b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool { return ev.GetState() == agboxv1.AgentState_AGENT_STATE_PAUSED })
	}); err != nil {
		return err
	}
	all, err := b.costs(ctx, fmt.Sprintf("%d that have ended and %d that wait", count, living))
	if err != nil {
		return err
	}
	fmt.Printf("  memory of an agent that has ended %.1f KB, of one that waits %.1f KB\n",
		float64(over.rss-few.rss)/float64(count)/1e3, float64(all.rss-over.rss)/living/1e3)
	verdict("a spawn, compared with 10 that have ended", float64(all.spawn)/float64(few.spawn), spawnAim)
	verdict("a list of those that live, in ms of the daemon", ms(all.list), ms(listAim))
	verdict("part of a core at rest", all.cpu, restAim)
	return nil
}

func verdict(what string, got, aim float64) {
	word := "reached"
	if got > aim {
		word = "MISSED"
	}
	fmt.Printf("  %-44s %10.4f   aim %g: %s\n", what, got, aim, word)
}

// end has so many programs work as agents and end.
func (b *agentBench) end(ctx context.Context, boxes []string, count int) error {
	begun := time.Now()
	err := each(4*makers, count, func(i int) error {
		id, err := b.spawn(ctx, boxes[i%len(boxes)], &agboxv1.AgentSpec{Command: []string{"true"}})
		if err != nil {
			return err
		}
		_, err = b.c.WaitAgent(ctx, id)
		return err
	})
	took := time.Since(begun)
	fmt.Printf("%d agents worked and ended in %.0f s, %.0f in a second\n", count, took.Seconds(), float64(count)/took.Seconds())
	return err
}

// costs are what a daemon costs with some agents. The times are processor time of the daemon,
// which depends less on what else the machine does.
type costs struct {
	spawn, list time.Duration
	// cpu is the part of a core at rest.
	cpu float64
	rss int64
}

func (b *agentBench) costs(ctx context.Context, what string) (costs, error) {
	pong, err := b.c.Ping(ctx)
	if err != nil {
		return costs{}, err
	}
	dir := filepath.Join("/proc", fmt.Sprint(pong.GetPid()))
	var found costs
	var spawned, listed figures
	for _, part := range []struct {
		took  *figures
		costs *time.Duration
		work  func() error
	}{
		{&spawned, &found.spawn, func() error { return b.spawnAndRemove(ctx) }},
		{&listed, &found.list, func() error { return exec.CommandContext(ctx, filepath.Join("bin", "agbox"), "agent", "ls").Run() }},
	} {
		before, err := ticks(dir)
		if err != nil {
			return found, err
		}
		for range 2 * block {
			if err := part.took.time(part.work); err != nil {
				return found, err
			}
		}
		after, err := ticks(dir)
		if err != nil {
			return found, err
		}
		*part.costs = time.Duration(after-before) * 10 * time.Millisecond / (2 * block)
	}
	if found.cpu, found.rss, err = idle(ctx, dir); err != nil {
		return found, err
	}
	fmt.Printf("with %s\n  %-44s %s\n  %-44s %s\n", what, "a spawn and its end", spawned, "agbox agent ls", listed)
	fmt.Printf("  of the daemon: %.2f ms for a spawn and its end, %.2f ms for a list; at rest %.2f %% of a core; memory %.0f MB\n",
		ms(found.spawn), ms(found.list), found.cpu*100, float64(found.rss)/1e6)
	return found, err
}

// idle returns the part of a core that a process takes at rest, and its own memory in bytes. dir is its folder
// in /proc.
func idle(ctx context.Context, dir string) (cpu float64, memory int64, err error) {
	if err := rest(ctx, quiet); err != nil {
		return 0, 0, err
	}
	before, err := ticks(dir)
	if err != nil {
		return 0, 0, err
	}
	if err := rest(ctx, atRest); err != nil {
		return 0, 0, err
	}
	after, err := ticks(dir)
	if err != nil {
		return 0, 0, err
	}
	memory, err = ownMemory(dir)
	return float64(after-before) / 100 / atRest.Seconds(), memory, err
}

// spawnAndRemove starts an agent, waits until it is EXECUTING, and removes it.
func (b *agentBench) spawnAndRemove(ctx context.Context) error {
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"sleep", "1000"}})
	if err != nil {
		return err
	}
	if err := b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool { return ev.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING }); err != nil {
		return err
	}
	return b.remove(ctx, id)
}

// ownMemory is the memory of a process without the pages of files, such as the database.
func ownMemory(dir string) (int64, error) {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("%s does not say how much memory the process has", dir)
}
