package agents

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// readPause is the least pause between two reads of a reader. It also rests as long as a read took.
const readPause = 300 * time.Millisecond

// read starts the readers: two that read again and again, and two for the watchdog, which ask for
// the least that there is to read and to write. They end with the context; release waits for them.
func (x *chaos) read(ctx context.Context, seed uint64) {
	c := x.in.Client(x.t)
	for i, read := range []func(context.Context, *rand.Rand){
		x.readByCommand,
		func(ctx context.Context, random *rand.Rand) { x.readByCall(ctx, c, random) },
		func(ctx context.Context, _ *rand.Rand) {
			x.until(ctx, "the list of sandboxes", func() error {
				_, err := c.ListSandboxes(ctx, client.ListOptions{})
				return err
			})
		},
		func(ctx context.Context, random *rand.Rand) {
			x.until(ctx, "a commit", func() error {
				err := c.RenameSandbox(ctx, x.boxes[0], fmt.Sprint("family-0-", random.IntN(1000)))
				if noRoom(err) {
					return nil // who says so does not stand still
				}
				return err
			})
		},
	} {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		x.work.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				read(ctx, random)
				rest := time.NewTimer(max(readPause, time.Since(began)))
				select {
				case <-rest.C:
				case <-ctx.Done():
					rest.Stop()
				}
			}
		})
	}
}

// until repeats a call until it has an answer.
func (x *chaos) until(ctx context.Context, what string, call func() error) {
	defer x.dog.ask(what)()
	for call() != nil && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond) // there is no daemon at the moment
	}
	x.count(what)
}

func (x *chaos) count(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts[what]++
}

// agent is one of the agents, or the root.
func (x *chaos) agent(random *rand.Rand) string {
	ids := *x.agents.Load()
	if len(ids) == 0 {
		return robot.Root
	}
	return ids[random.IntN(len(ids))]
}

// readByCommand runs a command that reads, in one of several shells.
func (x *chaos) readByCommand(ctx context.Context, random *rand.Rand) {
	id, family := x.agent(random), random.IntN(families)
	commands := [][]string{
		{"agent", "ls", "--all", "--stack", stackOf(family &^ 1)},
		{"agent", "tree", "--all"},
		{"agent", "leases"},
		{"agent", "inbox", robot.Root},
		{"inspect", x.boxes[family]},
		{"ls"},
	}
	if id != robot.Root { // which never runs: it has only an inbox
		for _, what := range []string{"leases", "events", "inspect", "journal"} {
			commands = append(commands, []string{"agent", what, id})
		}
	}
	x.cli(ctx, x.shell(random), commands[random.IntN(len(commands))]...)
}

// cli runs a command, which must do what it says: it starts a daemon if one was just killed, also on
// a full disk.
func (x *chaos) cli(ctx context.Context, shell *harness.Install, args ...string) {
	began := time.Now()
	cmd := shell.Command(ctx, "agbox", args...)
	var out, why bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &why
	answered := x.dog.ask(fmt.Sprint("agbox ", args))
	err := cmd.Run()
	if ctx.Err() != nil {
		return
	}
	answered()
	name := "agbox " + args[0]
	if len(args) > 1 && args[0] != "inspect" {
		name += " " + args[1]
	}
	x.count(name)
	if err != nil {
		x.t.Errorf("agbox %v in a shell with %v: %v after %v\n%s%s", args, shell.Env, err, time.Since(began).Round(time.Millisecond), harness.Clip(out.String()), harness.Clip(why.String()))
	}
}

// readByCall makes a call that reads.
func (x *chaos) readByCall(ctx context.Context, c *client.Client, random *rand.Rand) {
	id, box := x.agent(random), x.boxes[random.IntN(families)]
	type read struct {
		name string
		call func() error
	}
	calls := []read{
		{"ListAgents", func() error {
			_, err := c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true, Stack: stackOf(random.IntN(families) &^ 1)})
			return err
		}},
		{"GetAgent", func() error { _, err := c.GetAgent(ctx, id); return err }},
		{"AgentTree", func() error { _, err := c.AgentTree(ctx, id); return err }},
		{"ListLeases", func() error { _, err := c.Leases(ctx, id); return err }},
		{"ListLeases of all", func() error { _, err := c.Leases(ctx, ""); return err }},
		{"WatchAgents", func() error {
			a, err := c.GetAgent(ctx, id)
			if err != nil || a.GetLastSequence() == 0 {
				return err
			}
			for ev, err := range c.WatchAgents(ctx, id, 0) {
				if err != nil || ev.GetSequence() >= a.GetLastSequence() {
					return err
				}
			}
			return nil
		}},
		{"ReadInbox", func() error {
			for _, err := range c.Inbox(ctx, id) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"GetSandbox", func() error { _, err := c.GetSandbox(ctx, box); return err }},
	}
	if id != robot.Root { // which has no journal and no checkpoints
		calls = append(calls,
			read{"ListCheckpoints", func() error { _, err := c.ListCheckpoints(ctx, id); return err }},
			read{"ReadJournal", func() error {
				for _, err := range c.ReadJournal(ctx, id, 0) {
					if err != nil {
						return err
					}
				}
				return nil
			}},
		)
	}
	made := calls[random.IntN(len(calls))]
	answered := x.dog.ask(made.name)
	err := made.call()
	if ctx.Err() != nil {
		return
	}
	answered()
	x.count(made.name)
	if err != nil {
		x.t.Errorf("%s of %s, %s: %v", made.name, id, box, err)
	}
}
