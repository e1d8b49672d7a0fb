package docker

import (
	"context"
	"io"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// CopyTo unpacks a tar archive over the root of a container, which need not run. Folders
// that are missing above a file are made. Links of the container lead nowhere outside of
// it.
func (e *Engine) CopyTo(ctx context.Context, id string, archive io.Reader) error {
	return e.call(ctx, "copy files into the container", func(cli *client.Client) error {
		return cli.CopyToContainer(ctx, id, "/", archive, container.CopyToContainerOptions{})
	})
}
