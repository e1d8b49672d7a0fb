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
	// This many presses of Ctrl-C within this time detach from the command.
	leavePresses = 3
	leaveWithin  = 2 * time.Second
	// brokenPatience is how long a command may keep writing after its reader is gone
	// and it got SIGPIPE. Then it is cancelled.
	brokenPatience = time.Second
)

// passBound is how long the daemon may take to deliver a signal: as long as the client
// waits for a daemon that restarts.
var passBound = client.DefaultReconnect

// errLeft is the cancellation cause of a session that the user detached from.
var errLeft = errors.New("the user detached")

// session is a command in the foreground: its output comes here, signals go there.
type session struct {
	app    *app
	client *client.Client
	// id is the exec's id. It is set even before the exec is accepted.
	id string
	// runsOn means that the command keeps running after the user detaches.
	runsOn bool
	// detached means that signals end agbox and are not sent to the command.
	detached bool

	leave context.CancelCauseFunc
	// started is closed once the exec is accepted.
	started chan struct{}
	accept  sync.Once
	// over is set once the daemon says that the command has ended.
	over atomic.Bool
	// relayed counts the session's goroutines; the maker of the session waits for it.
	relayed sync.WaitGroup
	// resized tells the command the size of our terminal; nil while it has none.
	resized atomic.Pointer[func()]
	// pastOut and pastErr are the output from before agbox attached.
	pastOut, pastErr past
}

// newSession returns a session for an exec id; the exec need not exist yet.
func (a *app) newSession(c *client.Client, id string) *session {
	return &session{app: a, client: c, id: id, started: make(chan struct{})}
}

// start tells the session that the exec is accepted.
func (s *session) start() { s.accept.Do(func() { close(s.started) }) }

// accepted reports whether the exec is accepted.
func (s *session) accepted() bool {
	select {
	case <-s.started:
		return true
	default:
		return false
	}
}

// inForeground calls do and forwards signals of the given kinds to the exec, until do
// returns or the user detaches.
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
		s.app.say("It is unknown whether the command was accepted. `agbox logs -f %s` shows its output; `agbox kill %s` ends it.", s.id, s.id)
	default:
		s.app.say("Detached. The command keeps running: `agbox logs -f %s` shows its output, `agbox kill %s` ends it.", s.id, s.id)
	}
	return exitStatus(codeSignal + int(sig))
}

// quit ends the session. The next signal ends the program.
func (s *session) quit(cause error) {
	s.leave(cause)
	s.app.restore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
}

// relay forwards the signals of a session to its command.
type relay struct {
	*session
	// early is a signal from before the exec was accepted; 0 if none came. late then
	// fires when the wait for the daemon's answer times out.
	early syscall.Signal
	late  <-chan time.Time
	// presses are the times of the Ctrl-C presses.
	presses []time.Time
	// terminated is set once a SIGTERM came.
	terminated bool
	// passing are the signals that the daemon has not acknowledged yet.
	passing []passing
}

// passing is a signal that was sent and not acknowledged yet.
type passing struct {
	since time.Time
	done  chan struct{}
}

// relay forwards signals until ctx ends. A signal that arrives before the command is
// accepted waits a moment for that, and then ends the session.
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

// passEarly forwards the signal that came before the exec was accepted.
func (r *relay) passEarly(ctx context.Context) {
	if early := r.early; early != 0 {
		r.early, r.late = 0, nil
		r.pass(ctx, early)
	}
}

// obey handles one signal. The second SIGTERM ends the session, also if the daemon
// acknowledged the first: the command, or a supervisor that only claims to have delivered
// the signal, must not keep agbox. A program on a terminal may need several SIGINT or
// SIGQUIT, so only quick presses of Ctrl-C end the session.
func (r *relay) obey(ctx context.Context, sig syscall.Signal) {
	switch sig {
	case syscall.SIGPIPE:
		return
	case syscall.SIGWINCH:
		if tell := r.resized.Load(); tell != nil {
			(*tell)()
		}
		return
	case syscall.SIGHUP: // only run subscribes to it; elsewhere it ends only agbox
		r.quit(interrupted(sig))
		return
	case syscall.SIGTERM:
		if r.terminated {
			r.quit(interrupted(sig))
			return
		}
		r.terminated = true
	case syscall.SIGINT:
		r.presses = append(r.presses, r.app.now())
		if n := len(r.presses); n >= leavePresses && r.presses[n-1].Sub(r.presses[n-leavePresses]) <= leaveWithin {
			r.quit(errLeft)
			return
		} else if n >= 2 && r.runsOn && r.presses[n-1].Sub(r.presses[n-2]) <= leaveWithin {
			r.app.say("The command has got Ctrl-C and has not ended. Another Ctrl-C leaves it running in the background; `agbox kill %s` ends it.", r.id)
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

// stuck reports whether the daemon has not acknowledged a signal in time.
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

// pass forwards a signal to the command. If the daemon does not accept it, the session
// ends.
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

// send signals the command. It is not an error if the command has ended.
func (s *session) send(ctx context.Context, sig syscall.Signal) error {
	err := s.client.SignalExec(ctx, s.id, sig)
	if errors.Is(err, client.ErrWrongState) {
		s.over.Store(true)
		return nil
	}
	return err
}

// attach connects to the command and copies its output. With withInput it passes stdin to
// the command. A command on a terminal gets the size of ours.
func (s *session) attach(ctx context.Context, o client.AttachOptions, withInput bool) error {
	if o.Create == nil {
		var err error
		if s.pastOut, s.pastErr, err = s.app.pastOf(ctx, s.client, o.Exec); err != nil {
			return err
		}
	}
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
		// Our input waits while another client types. If no client types, the command has ended.
		if typist := sess.Attached().GetTypist(); typist != "" && !sess.MayType() {
			s.app.say("%s", lookingOn(typist, s.id))
		}
		stop, err := readInput(s.app.stdin, func(p []byte, err error) bool {
			if err != nil { // a read error ends the input too, as it would on a pipe
				_ = sess.CloseWrite()
				return false
			}
			_, err = sess.Write(p)
			return err == nil
		})
		if err != nil {
			return err
		}
		s.app.outages.types(sess)
		defer func() {
			if text := s.app.outages.undelivered(ctx.Err() != nil); text != "" && s.app.width() > 0 {
				s.app.say("%s", text)
			}
		}()
		defer stop()
		defer sess.Detach() // before stop: it ends a Write that is waiting
	}
	return s.copy(ctx, sess.Items())
}

// copy copies the output of the command until it has ended, and returns its exit code.
func (s *session) copy(ctx context.Context, items iter.Seq2[client.LogItem, error]) error {
	stdout, stderr := &sink{w: s.app.stdout}, &sink{w: s.app.stderr}
	var told toldGaps
	for item, err := range items {
		switch {
		case err != nil:
			return err
		case item.Created != nil:
			s.start()
		case item.End != nil:
			err := s.app.ended(item.End, told)
			if lost := cmp.Or(stdout.lost, stderr.lost); lost != nil {
				s.app.say("Output could not be written (%v). `agbox logs %s` shows all of it.", lost, s.id)
				return toldError{lost}
			}
			return err
		case item.Dropped > 0:
			told.tell(s.app, "", item)
		case item.Stream == agboxv1.LogStream_LOG_STREAM_STDERR:
			s.write(ctx, stderr, s.pastErr.shown(item))
		default:
			s.write(ctx, stdout, s.pastOut.shown(item))
		}
	}
	return errors.New("the output ended without an exit status")
}

// ended prints what neither the exit code nor the notices about gaps show, and returns
// the exit code.
func (a *app) ended(end *agboxv1.LogEnd, told toldGaps) error {
	e := end.GetExec()
	if end.GetNotice() != "" {
		a.say("%s", end.GetNotice())
	}
	if words := droppedWords(e); words != "" && !told.all(e) {
		a.say("%s", words)
	}
	if err := client.ExecError(e); err != nil {
		a.say("%s", err)
	} else if e.GetError() != "" { // cancelled, or killed because memory ran out
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
	// lost is a write error other than a closed pipe, such as a full disk: output is
	// missing though its reader still exists.
	lost error
}

// write passes output on. If our own reader is gone, the command gets SIGPIPE, as it
// would on a pipe of its own. It is cancelled if it keeps writing.
func (s *session) write(ctx context.Context, to *sink, data []byte) {
	if to.broken.IsZero() {
		s.app.outages.wrote(data)
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
