package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// nudgePause is how long the terminal has another size before nudge restores it.
	// The program must notice both changes.
	nudgePause = 60 * time.Millisecond
	// rightPause is the shortest time between two notices about who may type. The
	// right may change several times while the daemon restarts.
	rightPause = 300 * time.Millisecond
	// flushPatience is how long to wait for the last typed bytes to arrive.
	flushPatience = time.Second
	// stuckPatience is how long to wait for the terminal to accept output after the
	// user has detached. A window that hangs must not block agbox.
	stuckPatience = 500 * time.Millisecond
)

// console is our terminal with a command on it.
type console struct {
	app      *app
	client   *client.Client
	terminal *terminal
	keys     detachFilter
	// id is the exec's id, for messages; empty until known.
	id string
	// redraw makes the program redraw its screen as soon as we may type; until then our
	// size does not count.
	redraw atomic.Bool
	// fleeting is true if a signal to agbox ends the command too.
	fleeting bool

	leave   context.CancelCauseFunc
	session atomic.Pointer[client.Session]
	screen  screen
	// past is the output from before agbox attached.
	past past
	// stuck is true once the terminal has not accepted output within stuckPatience.
	stuck atomic.Bool
	// rights has a value if the right to type may have changed; right is the newest.
	rights chan struct{}
	right  atomic.Pointer[rightToType]
}

type rightToType struct {
	granted bool
	typist  string
}

// run attaches the terminal until the command has ended or the user has detached. It
// always restores the terminal.
func (c *console) run(ctx context.Context, o client.AttachOptions) error {
	signals, stop := c.app.signals(syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT, syscall.SIGPIPE,
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer stop()
	ctx, leave := context.WithCancelCause(ctx)
	c.leave, c.rights = leave, make(chan struct{}, 1)
	defer c.terminal.restore()
	c.app.outages.shows(func(o client.Outage, text string) { c.outage(ctx, o, text) })
	defer c.app.outages.shows(nil)
	var others sync.WaitGroup
	defer others.Wait()
	defer leave(nil)
	others.Go(func() { c.obey(ctx, signals) })
	err := c.attach(ctx, o, &others)
	// A failed restore cannot be reported: the terminal is where it would be shown.
	_ = c.put(ctx, c.app.stdout, []byte(c.screen.undo()))
	c.terminal.restore()
	status, ended := errors.AsType[endStatus](err)
	c.tellUndelivered(ctx, !ended)
	if ended {
		return c.teller(ctx).ended(status.end, toldGaps{})
	}
	return c.left(ctx, err)
}

// left tells the user how to reach a command that keeps running.
func (c *console) left(ctx context.Context, err error) error {
	stopped := signalled(ctx)
	if stopped == nil && !errors.Is(context.Cause(ctx), errLeft) {
		return err
	}
	if c.id != "" && (stopped == nil || !c.fleeting) {
		c.teller(ctx).say("Detached. The command keeps running: `agbox attach %s` reconnects to it, `agbox kill %s` ends it.", c.id, c.id)
	}
	return stopped
}

// attach connects to the command. For one that already runs, it first shows the current
// screen.
func (c *console) attach(ctx context.Context, o client.AttachOptions, others *sync.WaitGroup) error {
	if o.Create == nil {
		var err error
		if c.past, _, err = c.app.pastOf(ctx, c.client, o.Exec); err != nil {
			return err
		}
		if err := c.resume(ctx, &o); err != nil {
			return err
		}
	}
	o.OnInput = c.rightChanged
	sess, err := c.client.AttachExec(ctx, o)
	if err != nil {
		return err
	}
	defer sess.Detach()
	c.id = sess.ExecID()
	return c.serve(ctx, sess, others)
}

func (c *console) serve(ctx context.Context, sess *client.Session, others *sync.WaitGroup) error {
	at := sess.Attached()
	// If the input is closed, the command is ending, and nobody is told who types.
	c.right.Store(&rightToType{at.GetInput() || at.GetInputClosed(), at.GetTypist()})
	if err := c.terminal.raw(); err != nil {
		return fmt.Errorf("the terminal cannot be switched to raw mode: %w", err)
	}
	c.session.Store(sess)
	c.app.outages.types(sess)
	others.Go(func() { c.tellRights(ctx, rightToType{granted: true}) })
	c.resize(sess)
	stop, err := readInput(c.app.stdin, func(keys []byte, err error) bool { return c.typed(ctx, keys, err) })
	if err != nil {
		return err
	}
	defer stop()
	defer sess.Detach()
	return c.show(ctx, sess)
}

// show passes output on until the command has ended.
func (c *console) show(ctx context.Context, sess *client.Session) error {
	for item, err := range sess.Items() {
		switch {
		case err != nil:
			return err
		case item.End != nil:
			return endStatus{item.End}
		case item.Dropped > 0:
			continue // a message would disturb the screen; the end reports the gap
		}
		_, _ = c.screen.Write(item.Data)
		if err := c.put(ctx, c.app.stdout, c.past.shown(item)); err != nil {
			c.leave(interrupted(syscall.SIGPIPE))
			return err
		}
	}
	return errors.New("the output ended without an exit status")
}

var errStuck = errors.New("the terminal takes no output")

// put writes to the terminal. After ctx has ended it waits at most stuckPatience; if the
// terminal has not accepted the output by then, all later calls fail at once.
func (c *console) put(ctx context.Context, w io.Writer, p []byte) error {
	if c.stuck.Load() {
		return errStuck
	}
	if len(p) == 0 {
		return nil
	}
	written := make(chan error, 1)
	go func() { // if the terminal is stuck, it ends with the process
		defer c.terminal.restoreOnPanic()
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
		c.stuck.Store(true)
		return errStuck
	}
}

// teller is the app with a stderr that goes through put.
func (c *console) teller(ctx context.Context) *app {
	a := *c.app
	a.stderr = putWriter{c, ctx, c.app.stderr}
	return &a
}

type putWriter struct {
	c   *console
	ctx context.Context
	w   io.Writer
}

// Write writes a message. It begins on a line of its own.
func (p putWriter) Write(data []byte) (int, error) {
	if p.c.screen.endLine() {
		_ = p.c.put(p.ctx, p.c.app.stdout, []byte("\r\n"))
	}
	if err := p.c.put(p.ctx, p.w, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// typed handles keys, or the error that ended the input. It returns false to stop reading.
func (c *console) typed(ctx context.Context, keys []byte, err error) bool {
	defer c.terminal.restoreOnPanic()
	sess := c.session.Load()
	if err != nil {
		c.leave(interrupted(syscall.SIGHUP))
		return false
	}
	out, detach := c.keys.take(keys)
	if n := len(out); n > 0 {
		const ctrlC = 3
		out = c.app.outages.keep(out)
		_, err := sess.Type(out)
		switch {
		case err == nil && len(out) < n:
			_ = c.put(ctx, c.app.stderr, []byte("\a"))
		case errors.Is(err, client.ErrNotTypist) && bytes.IndexByte(out, ctrlC) >= 0:
			c.leave(errLeft)
			return false
		case errors.Is(err, client.ErrNotTypist):
			_ = c.put(ctx, c.app.stderr, []byte("\a"))
		case errors.Is(err, client.ErrInputClosed):
			// The command is about to end; the detach keys still work.
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
		c.leave(errLeft)
	}
	return !detach
}

// obey handles signals until ctx ends.
func (c *console) obey(ctx context.Context, signals <-chan os.Signal) {
	defer c.terminal.restoreOnPanic()
	for {
		select {
		case <-ctx.Done():
			return
		case got := <-signals:
			sess := c.session.Load()
			switch sig, _ := got.(syscall.Signal); {
			case sig == syscall.SIGPIPE:
			case sig == syscall.SIGTSTP:
				c.terminal.restore()
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // the default action of SIGTSTP
			case sess == nil && sig != syscall.SIGWINCH && sig != syscall.SIGCONT:
				c.leave(interrupted(sig))
				return
			case sess == nil:
			case sig == syscall.SIGWINCH:
				c.resize(sess)
			case sig == syscall.SIGCONT:
				_ = c.terminal.raw()
				_ = c.put(ctx, c.app.stdout, []byte(c.screen.again()))
				c.nudge(ctx)
			default:
				c.leave(interrupted(sig))
				return
			}
		}
	}
}

func (c *console) resize(sess *client.Session) {
	if size := c.terminal.size(); size != nil {
		sess.Resize(int(size.GetRows()), int(size.GetColumns()))
	}
}

// nudge makes the program redraw its screen by changing the size and changing it back.
func (c *console) nudge(ctx context.Context) {
	sess, size := c.session.Load(), c.terminal.size()
	if size == nil {
		return
	}
	sess.Resize(int(size.GetRows()), max(1, int(size.GetColumns())-1))
	select {
	case <-time.After(nudgePause):
	case <-ctx.Done():
	}
	c.resize(sess)
}

func (c *console) rightChanged(granted bool, typist string) {
	c.right.Store(&rightToType{granted, typist})
	c.wakeRights()
}

func (c *console) wakeRights() {
	select {
	case c.rights <- struct{}{}:
	default:
	}
}

// tellRights tells the user who types whenever that changes, and makes the program
// redraw once we may type. told is what the user already knows.
func (c *console) tellRights(ctx context.Context, told rightToType) {
	defer c.terminal.restoreOnPanic()
	for {
		if now := *c.right.Load(); now.granted != told.granted || !now.granted && now.typist != told.typist && now.typist != "" {
			told = now
			c.say(ctx, now)
		}
		if told.granted && c.redraw.CompareAndSwap(true, false) {
			c.nudge(ctx)
		}
		select {
		case <-c.rights:
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

// say prints who types, on a separate line. The terminal is raw, so a new line also needs
// a carriage return.
func (c *console) say(ctx context.Context, r rightToType) {
	text := "You can type now."
	if !r.granted {
		text = lookingOn(r.typist, c.id)
	}
	_ = c.put(ctx, c.app.stderr, fmt.Appendf(nil, "\r\nagbox: %s\r\n", text))
}

// endStatus carries the end of the command as an error.
type endStatus struct{ end *agboxv1.LogEnd }

func (endStatus) Error() string { return "the command has ended" }

// outage shows that the daemon is gone or back. A program that draws gets the text on the
// last row until it is told to draw again. Otherwise it is a line, and after the outage the
// incomplete line before it, such as a prompt, is shown again. Only one goroutine calls it
// at a time.
func (c *console) outage(ctx context.Context, o client.Outage, text string) {
	w := c.noticeWriter()
	if w == nil {
		return
	}
	if !c.screen.draws() {
		lead, tail := "", ""
		if c.screen.endLine() {
			lead = "\r\n"
		}
		if o.Over {
			tail = c.screen.lineAgain()
		}
		_ = c.put(ctx, w, []byte(lead+"agbox: "+text+"\r\n"+tail))
		return
	}
	if !o.Over {
		_ = c.put(ctx, w, []byte(c.statusLine("agbox: "+text)))
		return
	}
	if text == outageText(o) {
		text = "" // the row is free again, which says the same
	} else {
		text = "agbox: " + text
	}
	_ = c.put(ctx, w, []byte(c.statusLine(text)))
	c.redraw.Store(true)
	c.wakeRights()
}

// noticeWriter is where notices go: stderr or stdout, whichever is a terminal.
func (c *console) noticeWriter() io.Writer {
	switch {
	case c.app.width() > 0:
		return c.app.stderr
	case c.app.outputSize() != nil:
		return c.app.stdout
	}
	return nil
}

// statusLine is output that writes text on the last row and changes nothing else of the
// terminal's state. An empty text clears the row.
func (c *console) statusLine(text string) string {
	size := c.terminal.size()
	if size == nil {
		return ""
	}
	// The cursor with its modes is saved and restored; in between rows count from the top.
	row := fmt.Sprintf("\x1b7\x1b[?6l\x1b[%d;1H\x1b[0m", size.GetRows())
	if text == "" {
		return row + "\x1b[2K\x1b8"
	}
	width := max(1, int(size.GetColumns())-1) // the last column could wrap
	text = cut(text, width)
	return row + "\x1b[7m\x1b(B" + text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))) + "\x1b[0m\x1b8"
}

// tellUndelivered tells what of the typed keys did not reach the command.
func (c *console) tellUndelivered(ctx context.Context, left bool) {
	if text := c.app.outages.undelivered(left); text != "" {
		c.teller(ctx).say("%s", text)
	}
}

// searched is how far before the last screenful to search the output for escape
// sequences that set terminal modes, in bytes. Editors and pagers write them once, when
// they start. The second distance is tried if the first finds none.
var searched = []uint64{1 << 20, 64 << 20}

// resume finds where the last screenful of the command's output begins and which
// terminal modes the program has set. It chooses the output to show first accordingly.
func (c *console) resume(ctx context.Context, o *client.AttachOptions) error {
	if o.TailLines == nil {
		return nil // everything is shown again
	}
	probe, err := c.client.AttachExec(ctx, client.AttachOptions{Exec: o.Exec, TailLines: o.TailLines})
	if err != nil {
		return err
	}
	start := probe.Attached().GetCursor()
	looksOn := o.Input == agboxv1.InputMode_INPUT_MODE_NONE ||
		o.Input == agboxv1.InputMode_INPUT_MODE_IF_FREE && probe.Attached().GetTypist() != ""
	probe.Detach()
	from := client.Cursor{Stdout: start.GetStdoutOffset(), Stderr: start.GetStderrOffset()}
	for _, stretch := range searched {
		before, now, end, err := c.search(ctx, o.Exec, from, stretch)
		if err != nil {
			return err
		}
		if !now.alternate() && len(before.changed) == 0 && from.Stdout > stretch {
			continue // the modes may have been set earlier
		}
		o.TailLines, o.Cursor = nil, from
		switch {
		case now.alternate() && looksOn:
			// A watcher cannot make the program redraw: show everything since it entered the screen.
			o.Cursor.Stdout = now.entered
		case now.alternate():
			o.Cursor = end
			c.redraw.Store(true)
			c.begin(ctx, now)
		default:
			c.redraw.Store(!looksOn && now.draws())
			c.begin(ctx, before)
		}
		return nil
	}
	return nil
}

// search reads the output from stretch bytes before at to its end. before holds the
// terminal modes at that position, now those at the end.
func (c *console) search(ctx context.Context, exec string, at client.Cursor, stretch uint64) (before, now *screen, end client.Cursor, err error) {
	from := at
	from.Stdout -= min(from.Stdout, stretch)
	before, now, end = &screen{at: from.Stdout}, &screen{at: from.Stdout}, at
	for item, err := range c.client.FollowLogs(ctx, exec, client.LogOptions{Cursor: from}) {
		if err != nil {
			return nil, nil, end, err
		}
		_, _ = now.Write(item.Data)
		if item.Offset < at.Stdout {
			_, _ = before.Write(item.Data[:min(uint64(len(item.Data)), at.Stdout-item.Offset)])
		}
		end = item.Cursor
	}
	return before, now, end, nil
}

// begin sets our terminal to the modes of a screen.
func (c *console) begin(ctx context.Context, s *screen) {
	again := []byte(s.again())
	_, _ = c.screen.Write(again)
	_ = c.put(ctx, c.app.stdout, again)
}
