package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"

	"github.com/agbox/agbox/client"
)

const (
	// recoverySandboxes is how many sandboxes wait for the daemon's restart.
	// AGBOX_BENCH_SANDBOXES sets another number.
	recoverySandboxes = 200
	// recoveryRounds is how often the daemon is killed.
	recoveryRounds = 5
	// makers is how many sandboxes are made or removed concurrently.
	makers = 8
)

// recovered has the times of one restart since the kill.
type recovered struct {
	// answers: the daemon's first reply. statuses: every running exec has been shown as
	// running. served: a new command has also run in every sandbox.
	answers, statuses, served time.Duration
}

// benchRecovery kills the daemon while each sandbox runs a command, restarts it, and
// measures the time until all sandboxes are served again.
func benchRecovery(ctx context.Context) error {
	number, err := sandboxes(recoverySandboxes)
	if err != nil {
		return err
	}
	return withInstall(func(c *client.Client, agbox func(...string) error) error {
		begun := time.Now()
		jobs, err := fill(ctx, c, number)
		if err != nil {
			return err
		}
		fmt.Printf("%d sandboxes, each with a running exec, made in %.0f s\n", number, time.Since(begun).Seconds())
		var answers, statuses, served figures
		for range recoveryRounds {
			took, err := recoverOnce(ctx, c, agbox, jobs)
			if err != nil {
				return err
			}
			answers, statuses, served = append(answers, took.answers), append(statuses, took.statuses), append(served, took.served)
		}
		fmt.Printf("SIGKILL, start, %d times; since the kill, median and worst\n", recoveryRounds)
		for _, row := range []struct {
			what  string
			times figures
		}{{"the daemon answers", answers}, {"every running exec is shown", statuses}, {"a new exec has run in every sandbox", served}} {
			fmt.Printf("  %-36s %8.0f ms %8.0f ms\n", row.what, ms(row.times.at(0.5)), ms(row.times.at(1)))
		}
		return nil
	})
}

// fill makes sandboxes with a running exec each. jobs has the execs by sandbox. After an
// error, some sandboxes exist.
func fill(ctx context.Context, c *client.Client, number int) (jobs map[string]string, err error) {
	jobs = make(map[string]string, number)
	var mu sync.Mutex // guards jobs
	err = each(makers, number, func(int) error {
		sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: image}})
		if err != nil {
			return err
		}
		if _, err := c.WaitReady(ctx, sb.GetSandboxId()); err != nil {
			return err
		}
		job, err := c.CreateExec(ctx, &agboxv1.CreateExecRequest{SandboxId: sb.GetSandboxId(), Command: []string{"sleep", "100000"}})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		jobs[sb.GetSandboxId()] = job.GetExecId()
		return nil
	})
	return jobs, err
}

// empty removes all pools and sandboxes of the install, and waits until the engine has nothing of it.
func empty(ctx context.Context, c *client.Client) error {
	pools, err := c.ListPools(ctx)
	for _, p := range pools {
		err = errors.Join(err, c.RemovePool(ctx, p.GetName()))
	}
	boxes, failed := c.ListSandboxes(ctx, client.ListOptions{})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if err := each(makers, len(boxes), func(i int) error { return c.DeleteSandbox(ctx, boxes[i].GetSandboxId()) }); err != nil {
		return err
	}
	engine, err := newEngine()
	if err != nil {
		return err
	}
	defer engine.Close()
	report, err := c.Doctor(ctx, false)
	if err != nil {
		return err
	}
	own := filters.NewArgs(filters.Arg("label", "agbox.install-id="+report.GetInstallId()))
	for {
		left, err := engine.NetworkList(ctx, network.ListOptions{Filters: own})
		if err != nil || len(left) == 0 {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// each calls work for all numbers below count, several concurrently.
func each(atOnce, count int, work func(int) error) error {
	numbers, failed := make(chan int), make(chan error, atOnce)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			var err error
			for i := range numbers {
				if err == nil {
					err = work(i)
				}
			}
			failed <- err
		})
	}
	for i := range count {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	var err error
	for range atOnce {
		err = errors.Join(err, <-failed)
	}
	return err
}

// recoverOnce kills the daemon, starts the next one, and measures from the kill on.
func recoverOnce(ctx context.Context, c *client.Client, agbox func(...string) error, jobs map[string]string) (recovered, error) {
	var took recovered
	pong, err := c.Ping(ctx)
	if err != nil {
		return took, err
	}
	begun := time.Now()
	if err := kill(int(pong.GetPid())); err != nil {
		return took, fmt.Errorf("kill the daemon: %w", err)
	}
	if err := agbox("daemon", "start"); err != nil {
		return took, fmt.Errorf("start the daemon: %w", err)
	}
	took.answers = time.Since(begun)
	shown := make(chan error, 1)
	go func() { // waited for below
		err := allRunning(ctx, c, jobs)
		took.statuses = time.Since(begun)
		shown <- err
	}()
	boxes := make([]string, 0, len(jobs))
	for box := range jobs {
		boxes = append(boxes, box)
	}
	err = each(len(boxes), len(boxes), func(i int) error {
		status, err := c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: boxes[i], Command: []string{"true"}}, io.Discard, io.Discard)
		if err == nil && status.Code != 0 {
			err = fmt.Errorf("exit code %d", status.Code)
		}
		return err
	})
	took.served = time.Since(begun)
	return took, errors.Join(err, <-shown)
}

// kill ends a process with SIGKILL and returns when it is gone.
func kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return err
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// allRunning queries each exec separately, as its owner would.
func allRunning(ctx context.Context, c *client.Client, jobs map[string]string) error {
	for box, job := range jobs {
		e, err := c.GetExec(ctx, job)
		if err != nil {
			return err
		}
		if e.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
			return fmt.Errorf("the exec of sandbox %s is shown as %v", box, e)
		}
	}
	return nil
}
