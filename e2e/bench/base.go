package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// baseRounds is how often each side makes a sandbox, after one that does not count.
	baseRounds = 15
	// baseWords is the size of a file of the project in words of 8 bytes, at most.
	baseWords = 1500
)

// benchBase compares the creation of a sandbox with a workspace of 10,000 files, which keeps
// a base, and with the same files as a plain copy, which keeps none. Both take turns.
func benchBase(ctx context.Context) error {
	work, err := os.MkdirTemp("/var/tmp", "agbench-base")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := makeProject(work, smallFiles); err != nil {
		return err
	}
	return withInstall(func(c *client.Client, agbox func(...string) error) error {
		daemon, err := c.Ping(ctx)
		if err != nil {
			return err
		}
		sides := []*creation{
			{name: "without a base", spec: &agboxv1.CreateSpec{Image: image, Copies: []*agboxv1.CopySpec{{Source: work, Target: "/workspace"}}}},
			{name: "with a base", spec: &agboxv1.CreateSpec{Image: image, Workspace: &agboxv1.WorkspaceSpec{Source: work}}},
		}
		for i := range 1 + baseRounds {
			for _, side := range sides {
				if err := side.once(ctx, c, int(daemon.GetPid()), i > 0); err != nil {
					return fmt.Errorf("%s: %w", side.name, err)
				}
			}
		}
		fmt.Printf("creation of a sandbox with %d files, %d times each, in turns\n", smallFiles, baseRounds)
		for _, side := range sides {
			fmt.Printf("  %-15s %s   CPU of the daemon, median %7.2f ms\n", side.name, side.wall, ms(side.cpu.at(0.5)))
		}
		fmt.Printf("  the base costs  %+.1f %% (aim: at most 10)\n", 100*(float64(sides[1].wall.at(0.5))/float64(sides[0].wall.at(0.5))-1))
		return nil
	})
}

// creation is one side of benchBase.
type creation struct {
	name string
	spec *agboxv1.CreateSpec
	// wall is the time until READY, and cpu that of the daemon's processors.
	wall, cpu figures
}

// once makes and removes a sandbox.
func (s *creation) once(ctx context.Context, c *client.Client, pid int, counts bool) error {
	unix.Sync() // the other side does not pay for what this one has written
	before, err := used(pid)
	if err != nil {
		return err
	}
	begin := time.Now()
	sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: s.spec})
	if err != nil {
		return err
	}
	if _, err = c.WaitReady(ctx, sb.GetSandboxId()); err != nil {
		return err
	}
	wall := time.Since(begin)
	after, err := used(pid)
	if err != nil {
		return err
	}
	if counts {
		s.wall, s.cpu = append(s.wall, wall), append(s.cpu, after-before)
	}
	if err := c.DeleteSandbox(ctx, sb.GetSandboxId()); err != nil {
		return err
	}
	return c.WaitDeleted(ctx, sb.GetSandboxId())
}

// used returns the processor time of a process.
func used(pid int) (time.Duration, error) {
	n, err := ticks(filepath.Join("/proc", strconv.Itoa(pid)))
	return time.Duration(n) * 10 * time.Millisecond, err
}

// makeProject makes files that compress as source code does, 100 in each folder.
func makeProject(work string, files int) error {
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 2000)
	for i := range words {
		words[i] = fmt.Sprintf("%07x ", r.Uint32()>>4)
	}
	for i := range files {
		dir := filepath.Join(work, fmt.Sprint(i/100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var text []byte
		for range r.IntN(baseWords) {
			text = append(text, words[r.IntN(len(words))]...)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
