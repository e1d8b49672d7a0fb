package docker

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agbox/agbox/runtime"
)

// enginePause is the time between two questions about a command that is about to start or to
// end.
const enginePause = 20 * time.Millisecond

// ExecIn runs a command in a running container until it has ended, and returns its exit code.
// If ctx ends first, the engine closes the command's input; the command may go on. A program
// that is missing has the exit code 126 or 127, and the engine's words as its output.
func (e *Engine) ExecIn(ctx context.Context, id string, command runtime.ContainerCommand, streams runtime.ContainerStreams) (exitCode int, err error) {
	if streams.Stdin != nil {
		defer streams.Stdin.Close()
	}
	err = e.call(ctx, "run a command in the container", func(cli *client.Client) error {
		size := consoleSize(command.Size)
		made, err := cli.ContainerExecCreate(ctx, id, container.ExecOptions{
			Cmd: command.Args, WorkingDir: command.Dir, Env: command.Env, User: command.User,
			Tty: command.TTY, ConsoleSize: size, AttachStdin: streams.Stdin != nil, AttachStdout: true, AttachStderr: true,
		})
		if err != nil {
			return err
		}
		attached, err := cli.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{Tty: command.TTY, ConsoleSize: size})
		if err != nil {
			return err
		}
		if err := pipe(ctx, cli, made.ID, attached, command, streams); err != nil {
			return err
		}
		exitCode, err = exitOf(ctx, cli, made.ID)
		return err
	})
	return exitCode, err
}

// pipe connects a command with its streams until its output ends.
func pipe(ctx context.Context, cli *client.Client, id string, attached types.HijackedResponse, command runtime.ContainerCommand, streams runtime.ContainerStreams) error {
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	if streams.Stdin != nil {
		defer streams.Stdin.Close() // ends its copy
		others.Go(func() {
			if _, err := io.Copy(attached.Conn, streams.Stdin); err == nil {
				_ = attached.CloseWrite() // the command has ended if that fails
			}
		})
	}
	if command.TTY {
		// Engines before API 1.42 do not know ConsoleSize.
		others.Go(func() { resize(ctx, cli, id, command.Size, streams.Sizes) })
	}
	defer cancel()
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	var err error
	if command.TTY {
		_, err = io.Copy(streams.Stdout, attached.Reader)
	} else {
		_, err = stdcopy.StdCopy(streams.Stdout, streams.Stderr, attached.Reader)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// resize sets the size of a terminal, and then the sizes from the channel, until ctx ends. It
// tries again while the engine refuses, because a command that is about to start has no
// terminal yet.
func resize(ctx context.Context, cli *client.Client, id string, size runtime.TerminalSize, sizes <-chan runtime.TerminalSize) {
	for {
		var again <-chan time.Time
		if size != (runtime.TerminalSize{}) && cli.ContainerExecResize(ctx, id, container.ResizeOptions{Height: size.Rows, Width: size.Columns}) != nil {
			again = time.After(enginePause)
		} else {
			size = runtime.TerminalSize{}
		}
		select {
		case size = <-sizes:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

func consoleSize(size runtime.TerminalSize) *[2]uint {
	if size == (runtime.TerminalSize{}) {
		return nil
	}
	return &[2]uint{size.Rows, size.Columns}
}

// exitOf returns the exit code of a command whose output has ended. The command may have
// closed its output before it ends.
func exitOf(ctx context.Context, cli *client.Client, id string) (int, error) {
	for {
		state, err := cli.ContainerExecInspect(ctx, id)
		if err != nil || !state.Running {
			return state.ExitCode, err
		}
		select {
		case <-time.After(enginePause):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
