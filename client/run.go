package client

import (
	"context"
	"fmt"
	"io"
	"iter"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
)

// ExitStatus describes how a command ended.
type ExitStatus struct {
	// Code is the exit code of the process, or 128 + Signal if a signal ended it.
	Code int
	// Signal is the signal that ended the process, or 0 if it exited.
	Signal int
	// Exec is the complete record.
	Exec *agboxv1.ExecStatus
	// Notice is a message for readers of the output. It is usually empty.
	Notice string
}

// Run runs a command and copies its output while it runs. It leaves out gaps in the
// output; the counts in ExitStatus.Exec include them. The error is nil if the process ran
// and its status is known, whatever the exit code, and also if it was cancelled. If ctx
// ends, Run stops copying and the command continues. CancelExec ends it.
func (c *Client) Run(ctx context.Context, in *agboxv1.CreateExecRequest, stdout, stderr io.Writer) (ExitStatus, error) {
	return copyItems(c.RunLogs(ctx, in), stdout, stderr)
}

// CopyOutput copies the output of an exec from the beginning until it has ended, and
// returns its status as Run does. An error of a writer ends it.
func (c *Client) CopyOutput(ctx context.Context, exec string, stdout, stderr io.Writer) (ExitStatus, error) {
	return copyItems(c.FollowLogs(ctx, exec, LogOptions{Follow: true}), stdout, stderr)
}

func copyItems(items iter.Seq2[LogItem, error], stdout, stderr io.Writer) (ExitStatus, error) {
	for item, err := range items {
		switch {
		case err != nil:
			return ExitStatus{}, err
		case item.End != nil:
			return exitStatus(item.End)
		case item.Created != nil, item.Dropped > 0:
			continue
		case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
			_, err = stderr.Write(item.Data)
		default:
			_, err = stdout.Write(item.Data)
		}
		if err != nil {
			return ExitStatus{}, err
		}
	}
	return ExitStatus{}, &Error{Code: codes.Internal, Message: "The output ended without an exit status."}
}

func exitStatus(end *agboxv1.LogEnd) (ExitStatus, error) {
	e := end.GetExec()
	st := ExitStatus{Code: int(e.GetExitCode()), Signal: int(e.GetSignal()), Exec: e, Notice: end.GetNotice()}
	if e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		return st, &Error{Code: codes.Internal, Message: fmt.Sprintf("agboxd ended the output of exec %s while the exec runs.", e.GetExecId())}
	}
	return st, ExecError(e)
}
