package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/runtime"
)

const (
	// spawns is how many agents are started one after the other.
	spawns = 100
	// crashes is how often an agent crashes.
	crashes = 50
	// reports is how often each kind of report is sent.
	reports = 2000
)

// benchAgents measures agents in one sandbox, and a daemon with many that wait.
func benchAgents(ctx context.Context) error {
	return withRobot(ctx, func(b *agentBench, agbox func(...string) error) error {
		for _, part := range []func(context.Context) error{b.memory, b.spawns, b.reports, b.crashes, b.talks, b.streams, b.attacks} {
			if err := part(ctx); err != nil {
				return err
			}
		}
		return b.waiting(ctx, agbox)
	})
}

// withRobot runs work in a sandbox of a new install that has the robot, and removes
// everything afterwards.
func withRobot(ctx context.Context, work func(b *agentBench, agbox func(...string) error) error) error {
	folder, err := os.MkdirTemp("/var/tmp", "agrobot")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(folder, "robot"), "./e2e/internal/robot/program")
	build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	return withInstall(func(c *client.Client, agbox func(...string) error) (err error) {
		b := &agentBench{c: c, folder: folder}
		if b.box, err = b.sandbox(ctx); err != nil {
			return err
		}
		return work(b, agbox)
	})
}

// sandbox makes a sandbox that has the robot.
func (b *agentBench) sandbox(ctx context.Context) (string, error) {
	sb, err := b.c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{
		Image: image, Mounts: []*agboxv1.MountSpec{{Source: b.folder, Target: "/robot", Writable: true}},
	}})
	if err != nil {
		return "", err
	}
	_, err = b.c.WaitReady(ctx, sb.GetSandboxId())
	return sb.GetSandboxId(), err
}

// agentBench is a sandbox for agents.
type agentBench struct {
	c   *client.Client
	box string
	// folder is what the sandbox has as /robot.
	folder string
}

// spawn starts an agent.
func (b *agentBench) spawn(ctx context.Context, box string, spec *agboxv1.AgentSpec) (string, error) {
	a, err := b.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{Spec: spec, SandboxId: box})
	return a.GetAgentId(), err
}

// remove ends an agent and removes it.
func (b *agentBench) remove(ctx context.Context, id string) error {
	if _, err := b.c.KillAgent(ctx, id, agboxv1.KillMode_KILL_MODE_NOW); err != nil {
		return err
	}
	if _, err := b.c.WaitAgent(ctx, id); err != nil {
		return err
	}
	return b.c.DeleteAgent(ctx, id)
}

// until waits for an event of an agent.
func (b *agentBench) until(ctx context.Context, id string, found func(*agboxv1.AgentEvent) bool) error {
	for ev, err := range b.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return err
		}
		if found(ev) {
			return nil
		}
		if ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED {
			return fmt.Errorf("agent %s ended: %v", id, ev)
		}
	}
	return ctx.Err()
}

// aim prints figures beside the aim for their median.
func aim(what string, f figures, aim time.Duration) {
	verdict := "reached"
	if f.at(0.5) > aim {
		verdict = "MISSED"
	}
	fmt.Printf("  %-44s %s   aim %.1f ms: %s\n", what, f, ms(aim), verdict)
}

// spawns measures from the call that starts an agent to the state EXECUTING.
func (b *agentBench) spawns(ctx context.Context) error {
	engine, err := newEngine()
	if err != nil {
		return err
	}
	defer engine.Close()
	var theirs, ours figures
	for range spawns / block {
		for range block {
			if err := theirs.time(func() error { return dockerExec(ctx, engine, runtime.PrimaryName(b.box)) }); err != nil {
				return err
			}
		}
		for range block {
			var id string
			err := ours.time(func() error {
				id, err = b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"sleep", "1000"}})
				if err != nil {
					return err
				}
				return b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool { return ev.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING })
			})
			if err != nil {
				return err
			}
			if err := b.remove(ctx, id); err != nil {
				return err
			}
		}
	}
	fmt.Printf("an agent in a READY sandbox, %d times\n", len(ours))
	fmt.Printf("  %-44s %s\n", "baseline: docker exec of true over the API", theirs)
	aim("from the call until it is EXECUTING", ours, 10*time.Millisecond)
	return nil
}

// reports measures reports from inside, by a program of an agent.
func (b *agentBench) reports(ctx context.Context) error {
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"/robot/robot", "-measure", fmt.Sprint(reports)}, Retry: &agboxv1.AgentRetry{Attempts: 1}})
	if err != nil {
		return err
	}
	a, err := b.c.WaitAgent(ctx, id)
	if err != nil {
		return err
	}
	times, err := b.printed(ctx, a)
	if err != nil {
		return err
	}
	fmt.Printf("reports of a program, %d times each, in turns\n", len(times["beat"]))
	fmt.Printf("  %-44s %s\n", "baseline: a line to a program that echoes it", times["echo"])
	aim("beat", times["beat"], 100*time.Microsecond)
	aim("gate", times["gate"], 200*time.Microsecond)
	fmt.Printf("  %-44s %s\n", "usage, on disk", times["usage"])
	fmt.Printf("  %-44s %s\n", "baseline: 64 KiB written, synced, renamed", times["file"])
	aim("checkpoint of 64 KiB, on disk", times["checkpoint"], 3*time.Millisecond)
	return nil
}

// output returns what the newest incarnation of an agent has printed, once it has ended.
func (b *agentBench) output(ctx context.Context, a *agboxv1.Agent) ([]byte, error) {
	var printed bytes.Buffer
	for item, err := range b.c.FollowLogs(ctx, a.GetExecId(), client.LogOptions{Follow: true}) {
		if err != nil {
			return nil, err
		}
		printed.Write(item.Data)
	}
	return printed.Bytes(), nil
}

// printed returns the times that a measuring agent has printed by kind.
func (b *agentBench) printed(ctx context.Context, a *agboxv1.Agent) (map[string]figures, error) {
	printed, err := b.output(ctx, a)
	if err != nil {
		return nil, err
	}
	var times map[string]figures
	if err := json.Unmarshal(printed, &times); err != nil {
		return nil, fmt.Errorf("the measuring agent printed %q: %w", printed, err)
	}
	return times, nil
}

// crashes measures from the end of a program that crashes to the start of the next.
func (b *agentBench) crashes(ctx context.Context) error {
	// Different codes: three equal errors in a row would end the agent.
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{
		Command: []string{"sh", "-c", "exit $AGBOX_INCARNATION"},
		Retry:   &agboxv1.AgentRetry{Attempts: crashes, Delays: []*durationpb.Duration{durationpb.New(0)}},
	})
	if err != nil {
		return err
	}
	a, err := b.c.WaitAgent(ctx, id)
	if err != nil {
		return err
	}
	var pauses figures
	var ended time.Time
	for n := range a.GetIncarnation() {
		e, err := b.c.GetExec(ctx, fmt.Sprintf("agent-%s-%d", id, n+1))
		if err != nil {
			return err
		}
		if n > 0 {
			pauses = append(pauses, e.GetStartedAt().AsTime().Sub(ended))
		}
		ended = e.GetFinishedAt().AsTime()
	}
	fmt.Printf("a program that crashes %d times, no delay\n", a.GetCrashes())
	aim("from its end to the start of the next one", pauses, 30*time.Millisecond)
	return nil
}
