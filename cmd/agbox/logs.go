package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type logsOptions struct {
	follow bool
	format format
}

func (a *app) logsCommand() *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [-f] EXEC [flags]",
		Short: "Show the output of a command",
		Long: `Show the output of a command from its beginning, stdout on stdout and stderr on
stderr. With -o json each piece is one line; its data is base64.`,
		Args:              arguments(1, 1, "one EXEC"),
		ValidArgsFunction: a.completeExecs(1),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			return o.run(ctx, a, c, args[0])
		}),
	}
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "wait for more until the command has ended")
	addFormat(cmd, &o.format)
	return cmd
}

func (o *logsOptions) run(ctx context.Context, a *app, c *client.Client, ref string) error {
	// A name may pass to another command while we follow; the id stays.
	e, err := c.GetExec(ctx, ref)
	if err != nil {
		return err
	}
	for item, err := range c.FollowLogs(ctx, e.GetExecId(), client.LogOptions{Follow: o.follow}) {
		if err != nil {
			return err
		}
		if err := o.print(a, item); err != nil {
			return err
		}
	}
	return nil
}

func (o *logsOptions) print(a *app, item client.LogItem) error {
	var err error
	switch {
	case o.format == formatJSON:
		err = printJSONLine(a.stdout, logMessage(item))
	case item.End != nil:
		if item.End.GetNotice() != "" {
			a.say("%s", item.End.GetNotice())
		}
	case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
		_, err = a.stderr.Write(item.Data)
	default:
		_, err = a.stdout.Write(item.Data)
	}
	return err
}

func logMessage(item client.LogItem) proto.Message {
	if item.End != nil {
		return &agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_End{End: item.End}}
	}
	chunk := &agboxv1.LogChunk{Stream: item.Stream, Offset: item.Offset, Data: item.Data}
	if !item.Time.IsZero() {
		chunk.Time = timestamppb.New(item.Time)
	}
	return &agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Chunk{Chunk: chunk}}
}
