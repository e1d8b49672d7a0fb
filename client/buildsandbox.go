package client

import (
	"context"
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// BuildSandboxImages makes the images that a request for a sandbox builds, without the
// sandbox. tell gets lines of output, and each image when it is complete. The call is not
// repeated if the daemon goes away.
func (c *Client) BuildSandboxImages(ctx context.Context, in *agboxv1.CreateSandboxRequest, tell func(*agboxv1.BuildSandboxImagesResponse)) error {
	api, err := c.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.BuildSandboxImages(ctx, &agboxv1.BuildSandboxImagesRequest{Create: in})
	if err != nil {
		return c.decode(ctx, err)
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return c.decode(ctx, err)
		}
		tell(m)
	}
}
