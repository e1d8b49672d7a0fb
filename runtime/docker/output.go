package docker

import (
	"context"
	"io"
	"strconv"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/agbox/agbox/runtime"
)

// ContainerLogs writes what a container has put out itself, as far as the engine
// keeps it. It ends with the log, or, when it follows, with the container or ctx.
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
