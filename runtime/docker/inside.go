package docker

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
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

// CopyTo unpacks a tar archive over the root of a container, which need not run. Folders
// that are missing above a file are made. Links of the container lead nowhere outside of
// it.
func (e *Engine) CopyTo(ctx context.Context, id string, archive io.Reader) error {
	return e.call(ctx, "copy files into the container", func(cli *client.Client) error {
		return cli.CopyToContainer(ctx, id, "/", archive, container.CopyToContainerOptions{})
	})
}

// maxLinks bounds the symbolic links that ReadFile follows. The engine resolves all of
// them at once, so a second one appears only if a file is replaced meanwhile.
const maxLinks = 4

// ReadFile returns the content of a file of a container, which need not run. It follows
// symbolic links inside the container. A missing file is empty. It fails if the file is
// not a regular one or has more than limit bytes, and with errdefs.ErrNotFound if the
// container does not exist.
func (e *Engine) ReadFile(ctx context.Context, id, path string, limit int64) ([]byte, error) {
	var content []byte
	err := e.call(ctx, "read "+path+" of the container", func(cli *client.Client) (err error) {
		content, err = readFile(ctx, cli, id, path, limit)
		return err
	})
	if errdefs.IsNotFound(err) && !strings.Contains(err.Error(), "No such container") {
		return nil, nil
	}
	return content, err
}

func readFile(ctx context.Context, cli *client.Client, id, path string, limit int64) ([]byte, error) {
	for range maxLinks {
		stream, stat, err := cli.CopyFromContainer(ctx, id, path)
		if err != nil {
			return nil, err
		}
		if stat.Mode&os.ModeSymlink != 0 {
			_ = stream.Close() // only the link
			path = stat.LinkTarget
			continue
		}
		content, err := oneFile(stream, limit)
		return content, errors.Join(err, stream.Close())
	}
	return nil, fmt.Errorf("%s leads through too many symbolic links: %w", path, errdefs.ErrFailedPrecondition)
}

// Archive returns a file or folder of a container, which need not run, as a tar stream. It
// follows symbolic links inside the container. The engine holds the container until the
// stream is closed. It fails with errdefs.ErrNotFound if there is no such file or container.
func (e *Engine) Archive(ctx context.Context, id, path string) (stream io.ReadCloser, err error) {
	err = e.call(ctx, "read "+path+" of the container", func(cli *client.Client) error {
		for range maxLinks {
			found, stat, err := cli.CopyFromContainer(ctx, id, path)
			if err != nil {
				return err
			}
			if stat.Mode&os.ModeSymlink == 0 {
				stream = found
				return nil
			}
			_ = found.Close() // only the link
			path = stat.LinkTarget
		}
		return fmt.Errorf("%s leads through too many symbolic links: %w", path, errdefs.ErrFailedPrecondition)
	})
	return stream, err
}

// oneFile reads the one regular file of an archive.
func oneFile(archive io.Reader, limit int64) ([]byte, error) {
	files := tar.NewReader(archive)
	header, err := files.Next()
	if err != nil {
		return nil, fmt.Errorf("read the engine's archive: %w", err)
	}
	if header.Typeflag != tar.TypeReg || header.Size > limit {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes: %w", header.Name, limit, errdefs.ErrFailedPrecondition)
	}
	content, err := io.ReadAll(files)
	if err != nil {
		return nil, fmt.Errorf("read the engine's archive: %w", err)
	}
	return content, nil
}

// ContainerLogs writes the output that the engine keeps for a container. It returns
// at the end of the log, or, with Follow, when the container ends or ctx is
// cancelled.
func (e *Engine) ContainerLogs(ctx context.Context, id string, opts runtime.LogOptions, stdout, stderr io.Writer) error {
	options := container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: opts.Follow}
	if opts.Tail > 0 {
		options.Tail = strconv.Itoa(opts.Tail)
	}
	return e.call(ctx, "read the log of the container", func(cli *client.Client) error {
		raw, err := cli.ContainerLogs(ctx, id, options)
		if err != nil {
			return err
		}
		defer raw.Close()
		_, err = stdcopy.StdCopy(stdout, stderr, raw)
		return err
	})
}
