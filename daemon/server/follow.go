package server

import (
	"cmp"
	"context"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// RunExec accepts a command and follows its output while it is being started.
func (s *execCalls) RunExec(req *agboxv1.CreateExecRequest, stream grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	resolved, _, err := s.createExec(stream.Context(), req)
	if err != nil {
		return err
	}
	err = stream.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Created{Created: s.created(resolved)}})
	if err != nil {
		return err
	}
	f := s.newFollower(logSender{stream}, resolved.GetSandboxId(), resolved.GetExecId(), logs.Cursor{})
	f.batches = true
	defer f.close()
	return f.run(stream.Context(), true)
}

// newFollower makes the follower of one exec's output. Its close must be called.
func (s *execCalls) newFollower(to outputSender, sandboxID, execID string, at logs.Cursor) *follower {
	return &follower{
		s: s, to: to, sandboxID: sandboxID, execID: execID,
		done: s.ledger.ExecDone(execID), at: at,
	}
}

// run sends existing output, waits for more if requested, and ends with the status.
// Everything that the process wrote before its end is sent before its status.
func (f *follower) run(ctx context.Context, follow bool) error {
	if err := f.subscribe(follow); err != nil {
		return err
	}
	for {
		// In this order: once the end is known, the log is complete.
		last := !follow || f.ended() || f.expired()
		if err := f.deliver(ctx, last); err != nil {
			return err
		}
		if last || f.reader != nil && f.reader.Over() {
			return f.finish(ctx)
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
	}
}

// subscribe makes every later write wake the follower. It must come before the first
// read, so that no write is missed.
func (f *follower) subscribe(follow bool) (err error) {
	if !follow {
		return nil
	}
	f.watch, err = f.s.logs.Watch(f.s.paths.SandboxLogs(f.sandboxID), f.execID)
	if errdefs.IsNotFound(err) {
		return f.gone()
	}
	if err != nil && fault.Of(err) == nil {
		return unreadable(f.execID, err)
	}
	return err
}

// deliver sends everything that is there. It abandons a client that reads nothing for a
// while, because nothing may wait for it forever. With last set, it stops where the log
// ended when it was called, because background processes may write forever.
func (f *follower) deliver(ctx context.Context, last bool) error {
	delivered := make(chan error, 1)
	f.s.life.senders.Go(func() { delivered <- f.read(ctx, last) })
	before, slow := f.sends.Load(), cmp.Or(f.s.slowReader, slowReader)
	timer := time.NewTimer(slow)
	defer timer.Stop()
	for {
		select {
		case err := <-delivered:
			return err
		case <-timer.C:
		}
		if now := f.sends.Load(); now != before || now%2 == 0 {
			before = now
			timer.Reset(slow)
			continue
		}
		// The end of the handler ends the sending.
		f.s.life.senders.Go(func() {
			<-delivered //nolint:errcheck // the caller has the better error
			f.release()
		})
		f.left = true
		return errSlow(f.execID, slow)
	}
}

// wait returns when there may be more to do. A follower that waits long closes its files,
// so a thousand of them need no descriptors.
func (f *follower) wait(ctx context.Context) error {
	rest := time.NewTimer(restAfter)
	defer rest.Stop()
	var until <-chan time.Time
	if !f.part.Until.IsZero() {
		timer := time.NewTimer(time.Until(f.part.Until))
		defer timer.Stop()
		until = timer.C
	}
	for {
		select {
		case <-f.watch.C():
			return nil
		case <-f.done:
			return nil
		case <-f.other:
			return nil
		case <-until:
			return nil
		case <-f.s.life.stopping:
			return errStopping()
		case <-ctx.Done():
			return ctx.Err()
		case <-rest.C:
			if f.reader == nil || f.reader.Suspended() {
				continue
			}
			if err := f.reader.Suspend(); err != nil {
				return unreadable(f.execID, err)
			}
		}
	}
}

// finish ends the stream with the current exec.
func (f *follower) finish(ctx context.Context) error {
	status, err := f.s.execStatus(ctx, f.sandboxID, f.execID)
	if err != nil {
		return err
	}
	if err := f.giveUnindexed(ctx, status); err != nil {
		return err
	}
	end := &agboxv1.LogEnd{Exec: status, Cursor: cursorMessage(f.at)}
	if f.reader != nil {
		end.Notice = f.reader.Notice()
	}
	switch {
	case f.reader == nil && !reached(f.at, written(status)) && f.removed(ctx):
		end.Notice = removedNotice
	case f.isShort(status):
		end.Notice = "The log is shorter than what the command wrote: it was cut or removed."
	}
	return f.to.sendEnd(end)
}

// isShort reports whether the log lacks output that the process wrote before its end.
func (f *follower) isShort(status *agboxv1.ExecStatus) bool {
	return !f.selective && !reached(f.at, written(status))
}

// written is the end of what the process wrote before its end.
func written(status *agboxv1.ExecStatus) logs.Cursor {
	return logs.Cursor{Stdout: status.GetStdoutBytes(), Stderr: status.GetStderrBytes()}
}

// giveUnindexed sends output that no record of the index covers. Its time is unknown, so
// since and until do not exclude it. But if a record beyond until was found, everything
// after that is excluded.
func (f *follower) giveUnindexed(ctx context.Context, status *agboxv1.ExecStatus) error {
	if f.reader == nil || f.reader.Over() || !f.stopWaiting(status) {
		return nil
	}
	return f.deliver(ctx, true)
}
