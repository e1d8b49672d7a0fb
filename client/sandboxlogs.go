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
	// sandboxStreams is the maximum number of execs of a sandbox that are followed at the
	// same time. If more run, they take turns. Each is read from where its last turn
	// ended, so the bound costs delay but no output.
	sandboxStreams = 64
	// sandboxTurn is how long a turn lasts.
	sandboxTurn = 250 * time.Millisecond
)

// SandboxLogOptions selects the output of a sandbox's execs.
type SandboxLogOptions struct {
	// Follow reads running and later execs as they write, until the sandbox is deleted.
	// Without it, all execs that are kept are read completely, one after the other, in
	// start order.
	Follow bool
	// Since, Until, TailLines and Streams apply to each exec, as in LogOptions. With
	// Follow, reading ends at Until.
	Since, Until time.Time
	TailLines    *uint64
	Streams      []agboxv1.LogStream
}

// SandboxLogItem is a piece of output of one of the execs, or the end of one.
type SandboxLogItem struct {
	// Exec is the exec as it was when its reading started.
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

// endUnreadable turns the error of an unreadable log into the end of its exec, so that
// the other execs can still be read.
func endUnreadable(e *agboxv1.ExecStatus, at Cursor, item LogItem, err error) (LogItem, error) {
	told, ok := errors.AsType[*Error](err)
	if !ok || told.Reason != agboxv1.ErrorReason_LOG_UNREADABLE.String() {
		return item, err
	}
	return LogItem{Cursor: at, End: &agboxv1.LogEnd{
		Exec: e, Notice: told.Message, Cursor: &agboxv1.LogCursor{StdoutOffset: at.Stdout, StderrOffset: at.Stderr},
	}}, nil
}

// of returns the options for one exec. tail means that its reading starts now.
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
			for range g.items { // unblocks goroutines that still have items
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

// gathering merges the output of a sandbox's execs.
type gathering struct {
	client *Client
	o      SandboxLogOptions
	items  chan gathered
	// slots bounds the streams.
	slots chan struct{}
	// known has the execs whose reading has started and whose end event was not seen yet.
	// lost has those that were lost and may be found, when their output goes on.
	// Only run's goroutine uses them.
	known   map[string]*reading
	lost    map[string]*reading
	readers sync.WaitGroup
	// crowded is closed once there are more readers than slots.
	crowded chan struct{}
	crowd   sync.Once
	// mu guards running, the number of readers that have not ended.
	mu      sync.Mutex
	running int
}

func newGathering(c *Client, o SandboxLogOptions) *gathering {
	return &gathering{
		client: c, o: o, items: make(chan gathered), slots: make(chan struct{}, sandboxStreams),
		known: make(map[string]*reading), lost: make(map[string]*reading), crowded: make(chan struct{}),
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

// run starts a reader for every exec, until the sandbox is deleted or ctx ends. It reads
// the event position before it lists the running execs. So it misses no exec; one that
// starts in between appears in both.
func (g *gathering) run(ctx context.Context, sandbox string) {
	watching := ctx // the readers handle Until themselves
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
			continue // the next events are no longer kept: start again with the running execs
		case err != nil:
			g.give(ctx, SandboxLogItem{}, err)
		}
		return
	}
}

// errUntil is the cause of a gathering that Until has ended.
var errUntil = errors.New("until has passed")

// watch lists running execs and follows new ones. Its readers end with reading. It
// replaces sandbox by the id.
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
		if err == nil && id != "" && g.known[id] == nil {
			err = g.meet(ctx, reading, ev)
		}
		if err != nil {
			return err
		}
		switch ev.GetEventType() {
		case agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FOUND:
			continue
		}
		if ev.GetExec().GetMayReturn() {
			g.lost[id] = g.known[id]
		}
		delete(g.known, id) // no further event of it follows, unless it is found
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
	// An exec whose end event comes first was already running at the start.
	g.read(reading, e, ev.GetEventType() != agboxv1.EventType_EXEC_STARTED)
	return nil
}

// read starts a reader. tail means that the exec may have earlier output.
func (g *gathering) read(ctx context.Context, e *agboxv1.ExecStatus, tail bool) {
	id := e.GetExecId()
	if g.known[id] != nil {
		return
	}
	r := &reading{g: g, exec: e, tail: tail && g.o.TailLines != nil, before: g.lost[id], over: make(chan struct{})}
	g.known[id] = r
	delete(g.lost, id)
	g.mu.Lock()
	g.running++
	if g.running > sandboxStreams {
		g.crowd.Do(func() { close(g.crowded) })
	}
	g.mu.Unlock()
	g.readers.Go(func() {
		defer close(r.over)
		r.goOn(ctx)
		for !r.turn(ctx) {
		}
		g.mu.Lock()
		g.running--
		g.mu.Unlock()
	})
}

// reading is the reader of one exec.
type reading struct {
	g    *gathering
	exec *agboxv1.ExecStatus
	at   logPlace
	tail bool
	// before is the reading until the exec was lost, or nil. over is closed when this one is.
	before *reading
	over   chan struct{}
}

// goOn continues where the reading ended before the exec was lost.
func (r *reading) goOn(ctx context.Context) {
	if r.before == nil {
		return
	}
	select {
	case <-r.before.over:
		r.at, r.tail, r.before = r.before.at, false, nil
	case <-ctx.Done():
	}
}

// turn reads until the exec ends or, if there are more readers than streams, for
// sandboxTurn. It returns true if there is nothing more to read.
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
		// The turn may have ended, but the item is still delivered.
		if !r.g.give(ctx, SandboxLogItem{Exec: r.exec, LogItem: item}, err) || err != nil {
			return true
		}
		r.moved()
	}
	return true
}

// moved records that the next turn starts from a position and not from the tail.
func (r *reading) moved() { r.tail = false }

// time ends a turn after sandboxTurn if other readers wait.
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

// errTurn is the cause of a stream that ended its turn for another one.
var errTurn = errors.New("the turn is over")
