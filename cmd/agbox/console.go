package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// nudgePause lets a program see that its terminal has another size before it
	// gets its size back, which has it draw anew.
	nudgePause = 60 * time.Millisecond
	// rightPause is how long the right to type must have been as it is to be told:
	// it may pass from hand to hand while the daemon starts again.
	rightPause = 300 * time.Millisecond
	// flushPatience is how long what was typed last may take to arrive.
	flushPatience = time.Second
	// stuckPatience is how long the terminal may take for a piece of output once its
	// user leaves. It may take none at all: a window that hangs must not keep us.
	stuckPatience = 500 * time.Millisecond
)

// console is our terminal with a command on it.
type console struct {
	app      *app
	client   *client.Client
	terminal *terminal
	keys     detachFilter
	// id names the exec once it is known, for what is said.
	id string
	// redraw has the program draw its screen as soon as we may type: before, our size
	// does not count. Of tellRights only, once that has begun.
	redraw bool
	// fleeting is true when a signal to us ends the command too.
	fleeting bool

	leave   context.CancelCauseFunc
	session atomic.Pointer[client.Session]
	screen  screen
	// stuck is true once the terminal has not taken a piece of output.
	stuck atomic.Bool
	// rights has a value when the right to type may have changed; right is how.
	rights chan struct{}
	right  atomic.Pointer[rightToType]
}

type rightToType struct {
	granted bool
	typist  string
}

// run attaches the terminal until the command has ended or its user has left.
// However it ends, the terminal is as it was.
func (f *console) run(ctx context.Context, o client.AttachOptions) error {
	signals, stop := f.app.signals(syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE,
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer stop()
	ctx, leave := context.WithCancelCause(ctx)
	f.leave, f.rights = leave, make(chan struct{}, 1)
	defer f.terminal.restore()
	var others sync.WaitGroup
	defer others.Wait()
	defer leave(nil)
	others.Go(func() { f.obey(ctx, signals) })
	err := f.attach(ctx, o, &others)
	// From here on everything is as if we had not been there.
	_ = f.put(ctx, f.app.stdout, []byte(f.screen.undo())) // there is nobody to be told
	f.terminal.restore()
	var status endStatus
	if errors.As(err, &status) {
		return f.teller(ctx).ended(status.end)
	}
	return f.left(ctx, err)
}

// left says how it goes on with a command that runs on.
func (f *console) left(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	var sig interrupted
	if !errors.Is(cause, errLeft) && !errors.As(cause, &sig) {
		return err
	}
	if f.id != "" && (sig == 0 || !f.fleeting) {
		f.teller(ctx).say("Left. The command runs on: `agbox attach %s` goes on with it, `agbox kill %s` ends it.", f.id, f.id)
	}
	if sig != 0 {
		return exitStatus(codeSignal + int(sig))
	}
	return nil
}

// attach shows the command, one that runs already as it is now.
func (f *console) attach(ctx context.Context, o client.AttachOptions, others *sync.WaitGroup) error {
	if o.Create == nil {
		if err := f.resume(ctx, &o); err != nil {
			return err
		}
	}
	o.OnInput = f.rightChanged
	sess, err := f.client.AttachExec(ctx, o)
	if err != nil {
		return err
	}
	defer sess.Detach()
	f.id = sess.ExecID()
	return f.serve(ctx, sess, others)
}

func (f *console) serve(ctx context.Context, sess *client.Session, others *sync.WaitGroup) error {
	at := sess.Attached()
	f.right.Store(&rightToType{at.GetInput(), at.GetTypist()})
	if err := f.terminal.raw(); err != nil {
		return fmt.Errorf("the terminal cannot be switched to raw mode: %w", err)
	}
	f.session.Store(sess)
	others.Go(func() { f.tellRights(ctx, rightToType{granted: true}) })
	f.resize(sess)
	stop, err := readInput(f.app.stdin, func(keys []byte, err error) bool { return f.typed(ctx, keys, err) })
	if err != nil {
		return err
	}
	defer stop()
	defer sess.Detach()
	return f.show(ctx, sess)
}

// show passes output on until the command has ended.
func (f *console) show(ctx context.Context, sess *client.Session) error {
	for item, err := range sess.Items() {
		switch {
		case err != nil:
			return err
		case item.End != nil:
			return endStatus{item.End}
		}
		_, _ = f.screen.Write(item.Data)
		if err := f.put(ctx, f.app.stdout, item.Data); err != nil {
			f.leave(interrupted(syscall.SIGPIPE))
			return err
		}
	}
	return errors.New("the output ended without an exit status")
}

var errStuck = errors.New("the terminal takes no output")

// put writes to the terminal. Once ctx has ended it waits for that no longer than
// a moment, and never again after it was in vain.
func (f *console) put(ctx context.Context, w io.Writer, p []byte) error {
	if f.stuck.Load() {
		return errStuck
	}
	if len(p) == 0 {
		return nil
	}
	written := make(chan error, 1)
	go func() { // of a terminal that is stuck it ends with the process
		defer f.terminal.restoreOnPanic()
		_, err := w.Write(p)
		written <- err
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-written:
		return err
	case <-time.After(stuckPatience):
		f.stuck.Store(true)
		return errStuck
	}
}

// teller is the app with a stderr that goes through put.
func (f *console) teller(ctx context.Context) *app {
	a := *f.app
	a.stderr = putWriter{f, ctx, f.app.stderr}
	return &a
}

type putWriter struct {
	f   *console
	ctx context.Context
	w   io.Writer
}

func (p putWriter) Write(data []byte) (int, error) {
	if err := p.f.put(p.ctx, p.w, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// typed takes keys, or the error that ends them. It returns false when no more are wanted.
func (f *console) typed(ctx context.Context, keys []byte, err error) bool {
	defer f.terminal.restoreOnPanic()
	sess := f.session.Load()
	if err != nil {
		f.leave(interrupted(syscall.SIGHUP))
		return false
	}
	out, detach := f.keys.take(keys)
	if len(out) > 0 {
		const ctrlC = 3
		_, err := sess.Type(out)
		switch {
		case errors.Is(err, client.ErrLookingOn) && bytes.IndexByte(out, ctrlC) >= 0:
			f.leave(errLeft)
			return false
		case errors.Is(err, client.ErrLookingOn):
			_ = f.put(ctx, f.app.stderr, []byte("\a"))
		case errors.Is(err, client.ErrInputClosed):
			// It is about to end; the detach keys still count.
		case err != nil:
			return false
		}
	}
	if detach {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushPatience)
		defer cancel()
		if sess.MayType() {
			_ = sess.Flush(ctx)
		}
		f.leave(errLeft)
	}
	return !detach
}

// obey does what signals ask for until ctx ends.
func (f *console) obey(ctx context.Context, signals <-chan os.Signal) {
	defer f.terminal.restoreOnPanic()
	for {
		select {
		case <-ctx.Done():
			return
		case got := <-signals:
			sess := f.session.Load()
			switch sig, _ := got.(syscall.Signal); {
			case sig == syscall.SIGPIPE:
			case sig == syscall.SIGTSTP:
				f.terminal.restore()
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // as it would be without us
			case sess == nil && sig != syscall.SIGWINCH && sig != syscall.SIGCONT:
				f.leave(interrupted(sig))
				return
			case sess == nil:
			case sig == syscall.SIGWINCH:
				f.resize(sess)
			case sig == syscall.SIGCONT:
				_ = f.terminal.raw()
				_ = f.put(ctx, f.app.stdout, []byte(f.screen.again()))
				f.nudge(ctx)
			default:
				f.leave(interrupted(sig))
				return
			}
		}
	}
}

func (f *console) resize(sess *client.Session) {
	if size := f.terminal.size(); size != nil {
		sess.Resize(int(size.GetRows()), int(size.GetColumns()))
	}
}

// nudge has the program draw its screen anew: the size changes and changes back.
func (f *console) nudge(ctx context.Context) {
	sess, size := f.session.Load(), f.terminal.size()
	if size == nil {
		return
	}
	sess.Resize(int(size.GetRows()), max(1, int(size.GetColumns())-1))
	select {
	case <-time.After(nudgePause):
	case <-ctx.Done():
	}
	f.resize(sess)
}

func (f *console) rightChanged(granted bool, typist string) {
	f.right.Store(&rightToType{granted, typist})
	select {
	case f.rights <- struct{}{}:
	default:
	}
}

// tellRights says who types whenever that has changed, and has the program draw once
// we may; told is what the user takes for granted.
func (f *console) tellRights(ctx context.Context, told rightToType) {
	defer f.terminal.restoreOnPanic()
	for {
		if now := *f.right.Load(); now.granted != told.granted || !now.granted && now.typist != told.typist && now.typist != "" {
			told = now
			f.say(ctx, now)
		}
		if f.redraw && told.granted {
			f.redraw = false
			f.nudge(ctx)
		}
		select {
		case <-f.rights:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(rightPause):
		case <-ctx.Done():
			return
		}
	}
}

// say tells who types, on a line of its own: the terminal is raw, so the carriage
// has to be returned too.
func (f *console) say(ctx context.Context, r rightToType) {
	text := "You type now."
	if !r.granted {
		text = lookingOn(r.typist, f.id)
	}
	_ = f.put(ctx, f.app.stderr, fmt.Appendf(nil, "\r\nagbox: %s\r\n", text))
}

// lookingOn says who types, and how to type instead.
func lookingOn(typist, id string) string {
	if typist == "" {
		return "You look on: nobody types here. Ctrl-C leaves."
	}
	return fmt.Sprintf("You look on while %s types. Ctrl-C leaves; `agbox attach --take-over %s` has you type instead.", typistName(typist), id)
}

// endStatus is the end of the command, on its way as an error.
type endStatus struct{ end *agboxv1.LogEnd }

func (endStatus) Error() string { return "the command has ended" }
