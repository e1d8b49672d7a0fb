package client

import (
	"context"
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ServiceLogs writes the output of a service, as far as the engine keeps it. With follow
// set it returns when the service's container ends. It is not resumed if the connection
// breaks, because the engine has no cursors.
func (c *Client) ServiceLogs(ctx context.Context, in *agboxv1.ServiceLogsRequest, stdout, stderr io.Writer) error {
	api, err := c.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.ServiceLogs(ctx, in)
	for err == nil {
		var piece *agboxv1.ServiceLogsResponse
		if piece, err = stream.Recv(); err != nil {
			break
		}
		out := stdout
		if piece.GetStream() == agboxv1.LogStream_LOG_STREAM_STDERR {
			out = stderr
		}
		if _, failed := out.Write(piece.GetData()); failed != nil {
			return failed
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return c.decode(ctx, err)
}
