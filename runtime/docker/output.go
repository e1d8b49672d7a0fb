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
