package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
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

// passBound is how long the daemon may take to pass a signal on: as long as one that
// went away is waited for.
var passBound = client.DefaultReconnect

// errLeft is the cause of a session that its user left.
var errLeft = errors.New("left by its user")

// session is a command in the foreground: its output comes here, signals go there.
type session struct {
	app    *app
	client *client.Client
	// id is that of the exec, also before it is accepted.
	id string
	// runsOn tells that the command goes on when its user leaves it.
	runsOn bool
	// detached tells that signals are for agbox alone.
	detached bool

	leave context.CancelCauseFunc
	// started is closed once the exec is accepted.
	started chan struct{}
	accept  sync.Once
	// over is set once the daemon says that the command has ended.
	over atomic.Bool
	// relayed is waited for by whoever made the session.
	relayed sync.WaitGroup
	// resized tells the command the size of our terminal; nil while it has none.
	resized atomic.Pointer[func()]
}

// newSession is a session with the exec of the given id, which may not exist yet.
func (a *app) newSession(c *client.Client, id string) *session {
	return &session{app: a, client: c, id: id, started: make(chan struct{})}
}

// start tells the session that the exec is accepted.
func (s *session) start() { s.accept.Do(func() { close(s.started) }) }

// accepted tells whether the exec is.
func (s *session) accepted() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}

// inForeground does what a command in the foreground needs, with signals of the given
// kinds going to the exec, until it is over or its user leaves it.
func (s *session) inForeground(ctx context.Context, kinds []os.Signal, do func(context.Context) error) error {
	signals, stop := s.app.signals(kinds...)
	defer stop()
	ctx, s.leave = context.WithCancelCause(ctx)
	s.relayed.Go(func() { s.relay(ctx, signals) })
	defer s.relayed.Wait()
	defer s.leave(nil)
	err := do(ctx)
	sig := interrupted(syscall.SIGINT)
	if cause := context.Cause(ctx); !errors.Is(cause, errLeft) && !errors.As(cause, &sig) {
		return err
	}
	switch {
	case !s.runsOn || s.over.Load():
	case !s.accepted():
		s.app.say("It is not known whether the command was accepted: `agbox logs -f %s` shows its output, `agbox kill %s` ends it.", s.id, s.id)
	default:
		s.app.say("Left. The command runs on: `agbox logs -f %s` shows its output, `agbox kill %s` ends it.", s.id, s.id)
	}
	return exitStatus(codeSignal + int(sig))
}

// quit ends the session. The next signal ends the program.
func (s *session) quit(cause error) {
	s.leave(cause)
	s.app.restore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
}

// relay is what a session knows of the signals that it got.
type relay struct {
	*session
	// early came before the exec was accepted; 0 if none did. late then tells that the
	// answer was waited for long enough.
	early syscall.Signal
	late  <-chan time.Time
	// presses are the times of each Ctrl-C.
	presses []time.Time
	// passing are the signals that the daemon has not answered for yet.
	passing []passing
}

// passing is a signal on its way.
type passing struct {
	since time.Time
	done  chan struct{}
}

// relay passes signals on until ctx ends. One that arrives before the command is
// accepted waits for that for a moment, and then ends the session.
func (s *session) relay(ctx context.Context, signals <-chan os.Signal) {
	r := &relay{session: s}
	started := s.started
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			started = nil
			r.passEarly(ctx)
		case <-r.late:
			s.quit(interrupted(r.early))
		case got := <-signals:
			if sig, ok := got.(syscall.Signal); ok {
				r.obey(ctx, sig)
			}
		}
	}
}

// passEarly passes on what came before the exec was accepted.
func (r *relay) passEarly(ctx context.Context) {
	if early := r.early; early != 0 {
		r.early, r.late = 0, nil
		r.pass(ctx, early)
	}
}

// obey does what a signal asks for.
func (r *relay) obey(ctx context.Context, sig syscall.Signal) {
	switch sig {
	case syscall.SIGPIPE:
		return
	case syscall.SIGWINCH:
		if tell := r.resized.Load(); tell != nil {
			(*tell)()
		}
		return
	case syscall.SIGHUP: // only run asks for it; otherwise it ends agbox alone
		r.quit(interrupted(sig))
		return
	case syscall.SIGINT:
		r.presses = append(r.presses, r.app.now())
		if n := len(r.presses); n >= leavePresses && r.presses[n-1].Sub(r.presses[n-leavePresses]) <= leaveWithin {
			r.quit(errLeft)
			return
		}
	}
	switch {
	case r.accepted() && !r.detached && !r.over.Load() && !r.stuck():
		r.passEarly(ctx) // it is the older one
		r.pass(ctx, sig)
	case !r.accepted() && r.early == 0:
		r.early, r.late = sig, time.After(answerGrace)
	default:
		r.quit(interrupted(sig))
	}
}

// stuck tells whether the daemon leaves a signal unanswered.
func (r *relay) stuck() bool {
	r.passing = slices.DeleteFunc(r.passing, func(p passing) bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	return len(r.passing) > 0 && time.Since(r.passing[0].since) >= answerGrace
}

// pass sends the command a signal that agbox got. If the daemon does not take it the
// session ends.
func (r *relay) pass(ctx context.Context, sig syscall.Signal) {
	if r.detached {
		r.quit(interrupted(sig))
		return
	}
	p := passing{since: time.Now(), done: make(chan struct{})}
	r.passing = append(r.passing, p)
	r.relayed.Go(func() {
		defer close(p.done)
		bounded, cancel := context.WithTimeout(ctx, passBound)
		defer cancel()
		err := r.send(bounded, sig)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, context.DeadlineExceeded):
			r.app.say("%v was not passed on: agboxd does not answer.", sig)
			r.quit(interrupted(sig))
		case err != nil:
			r.app.say("%v was not passed on: %v", sig, err)
		}
	})
}

// send signals the command. That it has ended is no error.
func (s *session) send(ctx context.Context, sig syscall.Signal) error {
	err := s.client.SignalExec(ctx, s.id, sig)
	if errors.Is(err, client.ErrWrongState) {
		s.over.Store(true)
		return nil
	}
	return err
}

// run runs the command, copies its output until it has ended, and returns its
// exit code.
func (s *session) run(ctx context.Context, in *agboxv1.CreateExecRequest) error {
	return s.copy(ctx, s.client.RunLogs(ctx, in))
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
	s.start()
	if withInput {
		// Our input waits while somebody else types. Where nobody does, the command has ended.
		if typist := sess.Attached().GetTypist(); typist != "" && !sess.MayType() {
			s.app.say("%s", lookingOn(typist, s.id))
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
	return s.copy(ctx, sess.Items())
}

// copy copies the output of the command until it has ended.
func (s *session) copy(ctx context.Context, items iter.Seq2[client.LogItem, error]) error {
	stdout, stderr := &sink{w: s.app.stdout}, &sink{w: s.app.stderr}
	for item, err := range items {
		switch {
		case err != nil:
			return err
		case item.Created != nil:
			s.start()
		case item.End != nil:
			err := s.app.ended(item.End)
			if lost := cmp.Or(stdout.lost, stderr.lost); lost != nil {
				s.app.say("Output could not be written (%v): `agbox logs %s` shows all of it.", lost, s.id)
				return toldError{lost}
			}
			return err
		case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
			s.write(ctx, stderr, item.Data)
		default:
			s.write(ctx, stdout, item.Data)
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
func (s *session) write(ctx context.Context, to *sink, data []byte) {
	if to.broken.IsZero() {
		if _, err := to.w.Write(data); err != nil {
			to.broken = s.app.now()
			if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, io.ErrClosedPipe) {
				to.lost = err
			}
			s.relayed.Go(func() {
				if err := s.send(ctx, syscall.SIGPIPE); err != nil && ctx.Err() == nil {
					s.app.say("%v was not passed on: %v", syscall.SIGPIPE, err)
				}
			})
		}
		return
	}
	if !to.cancelled && s.app.now().Sub(to.broken) > brokenPatience {
		to.cancelled = true
		s.relayed.Go(func() { _ = s.client.CancelExec(ctx, s.id, client.DefaultGrace) })
	}
}
