package client

import (
	"context"
	"iter"
	"syscall"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// DefaultGrace selects the daemon's default time between SIGTERM and SIGKILL.
const DefaultGrace time.Duration = -1

// CreateExec starts a command and returns when it runs or has failed to start. GetExec
// and FollowLogs tell which. It sets exec_id and request_key if they are empty, so
// repeating the call after a lost answer does not start a second process.
func (c *Client) CreateExec(ctx context.Context, in *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
	return unary(ctx, c, agboxv1.SandboxServiceClient.CreateExec, repeatableExec(in), idempotent)
}

// CancelExec ends a running exec: SIGTERM to its process group and, after the grace
// period, SIGKILL to the rest of its process tree. A negative grace means the daemon's
// default. If the exec has ended, the error is ErrWrongState.
func (c *Client) CancelExec(ctx context.Context, exec string, grace time.Duration) error {
	in := &agboxv1.CancelExecRequest{ExecId: exec}
	if grace >= 0 {
		in.Grace = durationpb.New(grace)
	}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.CancelExec, in, idempotent)
	return err
}

// SignalExec sends a signal, at most once, to the process group of a running exec.
func (c *Client) SignalExec(ctx context.Context, exec string, sig syscall.Signal) error {
	in := &agboxv1.SignalExecRequest{ExecId: exec, Signal: int32(sig)}
	_, err := unary(ctx, c, agboxv1.SandboxServiceClient.SignalExec, in, atMostOnce)
	return err
}

// GetExec returns one exec, running or finished.
func (c *Client) GetExec(ctx context.Context, exec string) (*agboxv1.ExecStatus, error) {
	in := &agboxv1.GetExecRequest{ExecId: exec}
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.GetExec, in, idempotent)
	return out.GetExec(), err
}

// ListActiveExecs returns the running execs of one sandbox, or of all if sandbox is
// empty, newest first. It includes the sandbox's own command.
func (c *Client) ListActiveExecs(ctx context.Context, sandbox string) ([]*agboxv1.ExecStatus, error) {
	in := &agboxv1.ListActiveExecsRequest{IncludeMain: true}
	if sandbox != "" {
		in.SandboxId = &sandbox
	}
	out, err := unary(ctx, c, agboxv1.SandboxServiceClient.ListActiveExecs, in, idempotent)
	return out.GetExecs(), err
}

// ListExecs yields all execs of a sandbox, running and finished, ordered by exec id. It
// fetches page by page. An error ends it.
func (c *Client) ListExecs(ctx context.Context, sandbox string) iter.Seq2[*agboxv1.ExecStatus, error] {
	return func(yield func(*agboxv1.ExecStatus, error) bool) {
		in := &agboxv1.ListExecsRequest{SandboxId: sandbox}
		for {
			out, err := unary(ctx, c, agboxv1.SandboxServiceClient.ListExecs, in, idempotent)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, e := range out.GetExecs() {
				if !yield(e, nil) {
					return
				}
			}
			in.PageToken = out.GetNextPageToken()
			if in.PageToken == "" {
				return
			}
		}
	}
}
