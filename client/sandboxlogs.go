package client

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// sandboxStreams is how many execs of a sandbox are followed at a time. Where
	// more run they take turns: each is read from where it was left, so the bound
	// costs delay and no output.
	sandboxStreams = 64
	// sandboxTurn is how long a turn lasts.
	sandboxTurn = 250 * time.Millisecond
)

// SandboxLogOptions says which output of a sandbox's execs to read.
type SandboxLogOptions struct {
	// Follow gives the execs that run and those that are started later, as they
	// write, until the sandbox is deleted. Without it all execs are given that are
	// kept, one whole after the other, in the order in which they were started.
	Follow bool
	// Since, Until, TailLines and Streams choose within each exec, as in LogOptions.
	// With Follow, Until ends the reading.
	Since, Until time.Time
	TailLines    *uint64
	Streams      []agboxv1.LogStream
}

// SandboxLogItem is a piece of output of one of the execs, or the end of one.
type SandboxLogItem struct {
	// Exec is the exec as it was when its reading began.
	Exec *agboxv1.ExecStatus
	LogItem
}

// FollowSandboxLogs reads the output of all execs of a sandbox. Each exec's output
// comes in order, without gaps or duplicates, even if the daemon restarts; its last item
// has End. An exec that was removed meanwhile is skipped. If a log cannot be read, End
// has a notice that says why.
//
// The number of open streams is bounded, however many execs there are. A slow reader
// delays the output, not the execs.
func (c *Client) FollowSandboxLogs(ctx context.Context, sandbox string, o SandboxLogOptions) iter.Seq2[SandboxLogItem, error] {
	if o.Follow {
		return c.followSandbox(ctx, sandbox, o)
	}
	return func(yield func(SandboxLogItem, error) bool) {
		var all []*agboxv1.ExecStatus
		for e, err := range c.ListExecs(ctx, sandbox) {
			if err != nil {
				yield(SandboxLogItem{}, err)
				return
			}
			all = append(all, e)
		}
		slices.SortStableFunc(all, byStart)
		for _, e := range all {
			var at Cursor
			for item, err := range c.FollowLogs(ctx, e.GetExecId(), o.of(at, true)) {
				if errors.Is(err, ErrNotFound) {
					break
				}
				item, err = endUnreadable(e, at, item, err)
				at = item.Cursor
				if !yield(SandboxLogItem{Exec: e, LogItem: item}, err) || err != nil {
					return
				}
			}
		}
	}
}

func byStart(a, b *agboxv1.ExecStatus) int {
	return cmp.Or(a.GetStartedAt().AsTime().Compare(b.GetStartedAt().AsTime()), cmp.Compare(a.GetLastEventSequence(), b.GetLastEventSequence()))
}

// endUnreadable makes of an error that says that a log cannot be read the end of
// its exec at a place: it must not keep a reader from the other execs.
func endUnreadable(e *agboxv1.ExecStatus, at Cursor, item LogItem, err error) (LogItem, error) {
	var told *Error
	if !errors.As(err, &told) || told.Reason != agboxv1.ErrorReason_LOG_UNREADABLE.String() {
		return item, err
	}
	return LogItem{Cursor: at, End: &agboxv1.LogEnd{
		Exec: e, Notice: told.Message, Cursor: &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr},
	}}, nil
}

// of is what to read of one exec; tail tells whether it begins now.
func (o SandboxLogOptions) of(at Cursor, tail bool) LogOptions {
	part := LogOptions{Cursor: at, Follow: o.Follow, Since: o.Since, Until: o.Until, Streams: o.Streams}
	if tail {
		part.TailLines = o.TailLines
	}
	return part
}

func (c *Client) followSandbox(ctx context.Context, sandbox string, o SandboxLogOptions) iter.Seq2[SandboxLogItem, error] {
	return func(yield func(SandboxLogItem, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		g := newGathering(c, o)
		done := make(chan struct{})
		go func() { // ends with ctx at the latest
			defer close(done)
			defer close(g.items)
			g.run(ctx, sandbox)
			g.readers.Wait()
		}()
		defer func() {
			cancel()
			for range g.items { // whoever has something still is let go
			}
			<-done
		}()
		for got := range g.items {
			if !yield(got.SandboxLogItem, got.err) || got.err != nil {
				return
			}
		}
	}
}

// gathering brings the output of a sandbox's execs together.
type gathering struct {
	client *Client
	o      SandboxLogOptions
	items  chan gathered
	// slots bounds the streams.
	slots chan struct{}
	// known are the execs whose reading has begun and whose end was not seen among
	// the events yet; run's goroutine owns it.
	known   map[string]bool
	readers sync.WaitGroup
	// crowded is closed once there are more readers than slots.
	crowded chan struct{}
	crowd   sync.Once
	// mu guards running, the readers that have not ended.
	mu      sync.Mutex
	running int
}

func newGathering(c *Client, o SandboxLogOptions) *gathering {
	return &gathering{
		client: c, o: o, items: make(chan gathered), slots: make(chan struct{}, sandboxStreams),
		known: make(map[string]bool), crowded: make(chan struct{}),
	}
}

type gathered struct {
	SandboxLogItem
	err error
}

func (g *gathering) give(ctx context.Context, item SandboxLogItem, err error) bool {
	select {
	case g.items <- gathered{item, err}:
		return true
	case <-ctx.Done():
		return false
	}
}

// run starts a reader for every exec, until the sandbox is deleted or ctx ends.
// The place in the events is taken before the running execs are listed: what is
// started in between shows in both, and nothing in neither.
func (g *gathering) run(ctx context.Context, sandbox string) {
	watching := ctx // the readers see for themselves when Until comes
	if !g.o.Until.IsZero() {
		var stop context.CancelFunc
		watching, stop = context.WithDeadlineCause(ctx, g.o.Until, errUntil)
		defer stop()
	}
	for {
		err := g.watch(watching, ctx, &sandbox)
		switch {
		case errors.Is(context.Cause(watching), errUntil):
			return
		case errors.Is(err, ErrOutOfRange):
			continue // what it was to read next is kept no more: begin with what runs
		case err != nil:
			g.give(ctx, SandboxLogItem{}, err)
		}
		return
	}
}

// errUntil is the cause of a gathering that has come to its end.
var errUntil = errors.New("until has passed")

// watch lists what runs and follows what is started, with readers that live as
// long as reading. sandbox becomes the id.
func (g *gathering) watch(ctx, reading context.Context, sandbox *string) error {
	box, err := g.client.GetSandbox(ctx, *sandbox)
	if err != nil {
		return err
	}
	*sandbox = box.GetSandbox().GetSandboxId()
	active, err := g.client.ListActiveExecs(ctx, *sandbox)
	if err != nil {
		return err
	}
	for _, e := range active {
		g.read(reading, e, true)
	}
	for ev, err := range g.client.Events(ctx, *sandbox, box.GetSandbox().GetLastEventSequence()) {
		id := ev.GetExec().GetExecId()
		if err == nil && id != "" && !g.known[id] {
			err = g.meet(ctx, reading, ev)
		}
		if err != nil {
			return err
		}
		if ev.GetEventType() != agboxv1.EventType_EXEC_STARTED {
			delete(g.known, id) // no event of it follows its end
		}
	}
	return nil
}

// meet starts a reader for the exec of an event.
func (g *gathering) meet(ctx, reading context.Context, ev *agboxv1.SandboxEvent) error {
	e, err := g.client.GetExec(ctx, ev.GetExec().GetExecId())
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	// One of which only the end is new was running when all this began.
	g.read(reading, e, ev.GetEventType() != agboxv1.EventType_EXEC_STARTED)
	return nil
}

// read starts a reader; tail tells that the exec has a past.
func (g *gathering) read(ctx context.Context, e *agboxv1.ExecStatus, tail bool) {
	if g.known[e.GetExecId()] {
		return
	}
	g.known[e.GetExecId()] = true
	g.mu.Lock()
	g.running++
	if g.running > sandboxStreams {
		g.crowd.Do(func() { close(g.crowded) })
	}
	g.mu.Unlock()
	g.readers.Go(func() {
		r := reading{g: g, exec: e, tail: tail && g.o.TailLines != nil}
		for !r.turn(ctx) {
		}
		g.mu.Lock()
		g.running--
		g.mu.Unlock()
	})
}

// reading is one exec's place.
type reading struct {
	g    *gathering
	exec *agboxv1.ExecStatus
	at   logPlace
	tail bool
}

// turn reads until the exec ends or, where there are more readers than streams,
// for a while. It returns true when there is nothing more to read.
func (r *reading) turn(ctx context.Context) (over bool) {
	select {
	case r.g.slots <- struct{}{}:
		defer func() { <-r.g.slots }()
	case <-ctx.Done():
		return true
	}
	mine, stop := context.WithCancelCause(ctx)
	var timing sync.WaitGroup
	defer timing.Wait()
	defer stop(nil)
	timing.Go(func() { r.g.time(mine, stop) })
	out := output{exec: r.exec.GetExecId(), o: r.g.o.of(r.at.Cursor, r.tail), from: &r.at, moved: r.moved}
	for item, err := range out.items(mine, r.g.client) {
		switch {
		case err == nil:
		case errors.Is(context.Cause(mine), errTurn):
			return false
		case errors.Is(err, ErrNotFound):
			return true
		}
		item, err = endUnreadable(r.exec, r.at.Cursor, item, err)
		// The turn may be over here, and the item is given all the same.
		if !r.g.give(ctx, SandboxLogItem{Exec: r.exec, LogItem: item}, err) || err != nil {
			return true
		}
		r.moved()
	}
	return true
}

// moved notes that the next turn has a place to start from, instead of the tail.
func (r *reading) moved() { r.tail = false }

// time ends a turn when it has lasted long enough and somebody waits.
func (g *gathering) time(ctx context.Context, stop context.CancelCauseFunc) {
	select {
	case <-g.crowded:
	case <-ctx.Done():
		return
	}
	ticker := time.NewTicker(sandboxTurn)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		g.mu.Lock()
		waiting := g.running > sandboxStreams
		g.mu.Unlock()
		if waiting {
			stop(errTurn)
			return
		}
	}
}

// errTurn is the cause of a stream that made room for another.
var errTurn = errors.New("the turn is over")
