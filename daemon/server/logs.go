package server

import (
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
)

// FollowExecLogs streams output from a cursor on, or a part of it.
func (s *execCalls) FollowExecLogs(req *agboxv1.FollowExecLogsRequest, stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	ctx := stream.Context()
	if req.TailLines != nil && req.GetCursor() != nil {
		return invalid("Give either cursor or tail_lines: both say where to start.")
	}
	execID := req.GetExecId()
	sandboxID, err := s.ledger.FindExec(ctx, execID)
	if err != nil {
		return err
	}
	at := logs.Cursor{Stdout: req.GetCursor().GetStdoutOffset(), Stderr: req.GetCursor().GetStderrOffset()}
	f := s.newFollower(logSender{stream}, sandboxID, execID, at)
	f.batches = req.GetBatch()
	f.part, f.selective = partOf(req)
	defer f.close()
	return f.run(ctx, req.GetFollow())
}

// partOf returns the part that a request selects. some means that it is not everything.
func partOf(req *agboxv1.FollowExecLogsRequest) (part logs.Part, some bool) {
	part = logs.Part{Tail: req.TailLines != nil, Lines: req.GetTailLines()}
	if req.GetSince() != nil {
		part.Since = req.GetSince().AsTime()
	}
	if req.GetUntil() != nil {
		part.Until = req.GetUntil().AsTime()
	}
	for _, stream := range req.GetStreams() {
		part.Streams = append(part.Streams, logs.Stream(stream))
	}
	return part, part.Tail || req.GetSince() != nil || req.GetUntil() != nil || len(part.Streams) > 0
}

// follow sends the output of an exec and, at its end, the status.
func (s *execCalls) follow(stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse], sandboxID, execID string, at logs.Cursor, follow bool) error {
	f := s.newFollower(logSender{stream}, sandboxID, execID, at)
	f.batches = true
	defer f.close()
	return f.run(stream.Context(), follow)
}

// newFollower makes the follower of one exec's output. Its close must be called.
func (s *execCalls) newFollower(to outputSender, sandboxID, execID string, at logs.Cursor) *follower {
	return &follower{
		s: s, to: to, sandboxID: sandboxID, execID: execID,
		done: s.ledger.ExecDone(execID), at: at,
	}
}

func unreadable(execID string, cause error) error {
	if errors.Is(cause, unix.EMFILE) || errors.Is(cause, unix.ENFILE) {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The daemon may open no further file for the log of exec %s; end some followers, or raise its limit (ulimit -n, LimitNOFILE=).", execID).
			With("exec_id", execID).Because(cause)
	}
	return fault.New(errdefs.ErrDataLoss, agboxv1.ErrorReason_LOG_UNREADABLE,
		"The log of exec %s cannot be read: %s", execID, cause).With("exec_id", execID).Because(cause)
}

// errSlow ends the stream of a client that has read nothing for a while.
func errSlow(execID string, after time.Duration) error {
	return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
		"The output of exec %s was not read for %v; go on from the cursor you have got to.", execID, after).With("exec_id", execID)
}
