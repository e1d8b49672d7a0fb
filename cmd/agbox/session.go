package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// Three presses of Ctrl-C within this time leave the command alone.
	leavePresses = 3
	leaveWithin  = 2 * time.Second
	// brokenPatience is how long a command may go on writing to a reader that
	// is gone, after SIGPIPE, until it is cancelled.
	brokenPatience = time.Second
)

// errLeft is the cause of a session that its user left.
var errLeft = errors.New("left by its user")

// session is a command in the foreground: its output comes here, signals go there.
type session struct {
	app    *app
	client *client.Client
	leave  context.CancelCauseFunc
	// started carries the id of the exec once there is one.
	started chan string
	// relayed is waited for by whoever made the session.
	relayed sync.WaitGroup
	// resized tells the command the size of our terminal; nil while it has none.
	resized atomic.Pointer[func()]
}

// relay passes signals on until ctx ends. What arrives before the command has
// started waits for it.
func (s *session) relay(ctx context.Context, signals <-chan os.Signal) {
	var id string
	var early []syscall.Signal
	var presses []time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case id = <-s.started:
			for _, sig := range early {
				s.send(ctx, id, sig)
			}
		case got := <-signals:
			sig, ok := got.(syscall.Signal)
			if !ok || sig == syscall.SIGPIPE {
				continue
			}
			if sig == syscall.SIGWINCH {
				if tell := s.resized.Load(); tell != nil {
					(*tell)()
				}
				continue
			}
			if sig == syscall.SIGHUP {
				// Only run asks for it; otherwise it ends agbox alone.
				s.leave(interrupted(sig))
				return
			}
			if sig == syscall.SIGINT {
				presses = append(presses, s.app.now())
				if n := len(presses); n >= leavePresses && presses[n-1].Sub(presses[n-leavePresses]) <= leaveWithin {
					s.leave(errLeft)
					return
				}
			}
			if id == "" {
				early = append(early, sig)
				continue
			}
			s.send(ctx, id, sig)
		}
	}
}

// send signals the command without waiting for the answer: a daemon that is
// away must not keep the next Ctrl-C from being seen.
func (s *session) send(ctx context.Context, id string, sig syscall.Signal) {
	s.relayed.Go(func() {
		err := s.client.SignalExec(ctx, id, sig)
		if err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrWrongState) {
			s.app.say("%v was not passed on: %v", sig, err)
		}
	})
}

// run runs the command, copies its output until it has ended, and returns its
// exit code.
func (s *session) run(ctx context.Context, in *agboxv1.CreateExecRequest) error {
	return s.copy(ctx, in.GetExecId(), s.client.RunLogs(ctx, in))
}

// attach does the same over a session, which passes our stdin on if wanted. With
// a terminal of its own the command gets the size of ours.
func (s *session) attach(ctx context.Context, o client.AttachOptions, withInput bool) error {
	sess, err := s.client.AttachExec(ctx, o)
	if err != nil {
		return err
	}
	defer sess.Detach()
	e := sess.Attached().GetExec()
	if e.GetTty() {
		tell := func() {
			if size := s.app.outputSize(); size != nil {
				sess.Resize(int(size.GetRows()), int(size.GetColumns()))
			}
		}
		tell()
		s.resized.Store(&tell)
	}
	s.started <- sess.ExecID()
	if withInput {
		// Our input waits while somebody else types. Where nobody does, the command has ended.
		if typist := sess.Attached().GetTypist(); typist != "" && !sess.MayType() {
			s.app.say("%s", lookingOn(typist, sess.ExecID()))
		}
		stop, err := readInput(s.app.stdin, func(p []byte, err error) bool {
			if err != nil { // what breaks off is an end as well, as a pipe to the command would show it
				_ = sess.CloseWrite()
				return false
			}
			_, err = sess.Write(p)
			return err == nil
		})
		if err != nil {
			return err
		}
		defer stop()
		defer sess.Detach() // or a Write would go on waiting
	}
	return s.copy(ctx, sess.ExecID(), sess.Items())
}

// copy copies the output of the command until it has ended.
func (s *session) copy(ctx context.Context, id string, items iter.Seq2[client.LogItem, error]) error {
	stdout, stderr := &sink{w: s.app.stdout}, &sink{w: s.app.stderr}
	for item, err := range items {
		switch {
		case err != nil:
			return err
		case item.Created != nil:
			s.started <- id
		case item.End != nil:
			err := s.app.ended(item.End)
			if lost := cmp.Or(stdout.lost, stderr.lost); lost != nil {
				s.app.say("Output could not be written (%v): `agbox logs %s` shows all of it.", lost, id)
				return toldError{lost}
			}
			return err
		case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
			s.write(ctx, id, stderr, item.Data)
		default:
			s.write(ctx, id, stdout, item.Data)
		}
	}
	return errors.New("the output ended without an exit status")
}

// ended says what the exit code alone does not tell.
func (a *app) ended(end *agboxv1.LogEnd) error {
	e := end.GetExec()
	if end.GetNotice() != "" {
		a.say("%s", end.GetNotice())
	}
	if n := e.GetStdoutDroppedBytes() + e.GetStderrDroppedBytes(); n > 0 {
		a.say("%d bytes of the output were not kept, because the log is full.", n)
	}
	if err := client.ExecError(e); err != nil {
		a.say("%s", err)
	} else if e.GetError() != "" { // cancelled, or killed for want of memory
		a.say("%s", e.GetError())
	}
	return exitStatus(execExitCode(e))
}

// sink is one of our outputs.
type sink struct {
	w io.Writer
	// broken is when writing first failed; zero while it works.
	broken    time.Time
	cancelled bool
	// lost is why output is missing though somebody may wait for it, as on a full disk.
	lost error
}

// write passes output on. When our own reader is gone the command gets SIGPIPE,
// as it would on a pipe of its own, and is cancelled if it writes on all the same.
func (s *session) write(ctx context.Context, id string, to *sink, data []byte) {
	if to.broken.IsZero() {
		if _, err := to.w.Write(data); err != nil {
			to.broken = s.app.now()
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.ErrClosedPipe) {
				to.lost = err
			}
			s.send(ctx, id, syscall.SIGPIPE)
		}
		return
	}
	if !to.cancelled && s.app.now().Sub(to.broken) > brokenPatience {
		to.cancelled = true
		s.relayed.Go(func() { _ = s.client.CancelExec(ctx, id, client.DefaultGrace) })
	}
}
