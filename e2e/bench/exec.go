package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/docker/docker/api/types/container"
	docker "github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/runtime"
)

const (
	// rounds is how often each side runs.
	rounds = 200
	image  = "agbox/base:latest"
)

// benchExec compares running true and reading its exit code: agbox through the client
// package, with a commit before and after, and docker exec over its API.
func benchExec(ctx context.Context) error {
	return withSandbox(ctx, func(c *client.Client, box string) error {
		engine, err := newEngine()
		if err != nil {
			return err
		}
		defer engine.Close()
		api, processes := execPairs(ctx, c, engine, box)
		if err := api.run("exec of true over the API", "docker exec API", rounds); err != nil {
			return err
		}
		return processes.run("exec of true as a whole process", "docker exec", rounds/4)
	})
}

// execPairs returns execs of true in a sandbox over the API, and as whole processes.
func execPairs(ctx context.Context, c *client.Client, engine *docker.Client, box string) (api, processes pair) {
	api = pair{
		theirs: func() error { return dockerExec(ctx, engine, runtime.PrimaryName(box)) },
		ours:   func() error { return agboxExec(ctx, c, box) },
	}
	processes = pair{
		theirs: command(ctx, "docker", "exec", runtime.PrimaryName(box), "true"),
		ours:   agboxCommand(ctx, "exec", box, "true"),
	}
	return api, processes
}

func agboxExec(ctx context.Context, c *client.Client, box string) error {
	status, err := c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}}, io.Discard, io.Discard)
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("exit code %d", status.Code)
	}
	return err
}

func dockerExec(ctx context.Context, engine *docker.Client, name string) error {
	created, err := engine.ContainerExecCreate(ctx, name, container.ExecOptions{Cmd: []string{"true"}, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return err
	}
	stream, err := engine.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stdcopy.StdCopy(io.Discard, io.Discard, stream.Reader); err != nil {
		return err
	}
	status, err := engine.ContainerExecInspect(ctx, created.ID)
	if err == nil && status.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", status.ExitCode)
	}
	return err
}

// newEngine connects to the engine, for what it does alone.
func newEngine() (*docker.Client, error) {
	return docker.NewClientWithOpts(docker.FromEnv, docker.WithAPIVersionNegotiation())
}

// withInstall runs work with a daemon of a new install, and removes everything afterwards, also if the work
// was interrupted. agbox runs a command line on that install.
func withInstall(work func(c *client.Client, agbox func(...string) error) error) (err error) {
	home, err := os.MkdirTemp("/var/tmp", "agbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	if err := os.Setenv("AGBOX_HOME", home); err != nil {
		return err
	}
	agbox := func(args ...string) error {
		cmd := exec.Command(filepath.Join("bin", "agbox"), args...)
		cmd.Stderr = os.Stderr
		return cmd.Run()
	}
	if err := agbox("daemon", "start"); err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	defer func() { err = errors.Join(err, agbox("daemon", "stop")) }()
	c, err := client.New()
	if err != nil {
		return err
	}
	defer c.Close()
	// The work may have ended the daemon.
	defer func() { err = errors.Join(err, agbox("daemon", "start"), empty(context.Background(), c)) }()
	return work(c, agbox)
}

// withSandbox runs work in a sandbox of a new install.
func withSandbox(ctx context.Context, work func(c *client.Client, box string) error) error {
	return withSandboxOf(ctx, image, work)
}

func withSandboxOf(ctx context.Context, image string, work func(c *client.Client, box string) error) error {
	return withInstall(func(c *client.Client, _ func(...string) error) error {
		sb, err := c.CreateSandbox(ctx, &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: image}})
		if err != nil {
			return err
		}
		if _, err := c.WaitReady(ctx, sb.GetSandboxId()); err != nil {
			return err
		}
		return work(c, sb.GetSandboxId())
	})
}
