// Package links has the daemon's connections to the supervisors of sandboxes.
//
// Each linked sandbox has a goroutine that receives the reports of its supervisor. Links
// owns these goroutines, and work over a link that outlives the call that started it.
package links

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// CallTimeout bounds one call to a supervisor. A supervisor answers within a millisecond;
// a hostile one may never answer.
const CallTimeout = 10 * time.Second

// waitAtMost is how long a call waits for a link that is being made, for example because
// the daemon has just restarted.
var waitAtMost = 10 * time.Second

// Reports receives the reports of supervisors about execs. Its methods run in the
// goroutine of the link, so they must not wait for an answer over the same link.
type Reports interface {
	// Report receives the state of an exec that the link queried when it was made, or
	// that has ended.
	Report(ctx context.Context, lk *Link, rec *guestv1.ExecRecord)
	// Missed receives an exec that was accepted over an earlier link, too late for this
	// link to query it.
	Missed(ctx context.Context, lk *Link, execID string)
}

// News receives the news of incarnations of agents. Its methods run in the goroutine that
// follows the incarnations of a link, so they must be quick.
type News interface {
	// Told receives what the supervisor knows about an incarnation.
	Told(lk *Link, news *guestv1.IncarnationNews)
	// Silent says that no further news come over the link.
	Silent(lk *Link)
}

// Options are the dependencies of Links.
type Options struct {
	Ledger *ledger.Ledger
	Paths  paths.Install
	Now    func() time.Time
	Log    *slog.Logger
	// FirstPID asks the engine for the pid of the first process in the sandbox's primary.
	FirstPID func(ctx context.Context, sandboxID string) (int, error)
	// Lost is called for a sandbox that must be linked again: its link broke, or a call
	// waits for a link that could not be made. It must not block.
	Lost func(sandboxID string)
}

// Links owns the links to all supervisors.
type Links struct {
	ledger   *ledger.Ledger
	paths    paths.Install
	now      func() time.Time
	log      *slog.Logger
	firstPID func(ctx context.Context, sandboxID string) (int, error)
	lost     func(sandboxID string)
	reports  Reports
	news     News // may be nil

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// stopping is closed when calls must no longer wait for a link.
	stopping chan struct{}

	// mu guards the fields below. It is held only for map operations and reads of the
	// ledger's memory.
	mu    sync.Mutex
	links map[string]*Link
	// waiting has an entry for each sandbox whose link a call awaits.
	waiting map[string]*awaited
	// failures has the last error for each sandbox that could not be linked.
	failures map[string]*failure
	// made has, per sandbox, when its newest links were made, at most maxLinks.
	made   map[string][]time.Time
	closed bool
}

// awaited is a link that calls wait for.
type awaited struct {
	// news is closed and replaced when the link is made or cannot be made.
	news chan struct{}
	// calls counts the calls that wait.
	calls int
}

// failure is the error of an attempt to link a sandbox.
type failure struct{ err error }

// final reports whether a retry is useless, because somebody must repair the supervisor's
// socket.
func (f *failure) final() bool { return f != nil && errdefs.IsFailedPrecondition(f.err) }

// New makes Links. SendReports must be called before the first Connect.
func New(ctx context.Context, o Options) *Links {
	ctx, cancel := context.WithCancel(ctx)
	return &Links{
		ledger: o.Ledger, paths: o.Paths, now: o.Now, log: o.Log, firstPID: o.FirstPID, lost: o.Lost,
		ctx: ctx, cancel: cancel, stopping: make(chan struct{}),
		links:    make(map[string]*Link),
		waiting:  make(map[string]*awaited),
		failures: make(map[string]*failure),
		made:     make(map[string][]time.Time),
	}
}

// SendReports sets the receiver of the reports. It must be called once, before the first
// Connect.
func (l *Links) SendReports(to Reports) { l.reports = to }

// SendNews sets the receiver of the news of incarnations. It must be called before the first
// Connect, at most once.
func (l *Links) SendNews(to News) { l.news = to }

// StopWaiting ends the waits for links that are being made. It must be called once,
// before Close. Existing links continue.
func (l *Links) StopWaiting() { close(l.stopping) }

// Close breaks all links and waits for their goroutines and for the work of Go. The
// commands in the sandboxes continue.
func (l *Links) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
}

// Go runs work that outlives the call that started it. Close cancels its context and
// waits for it. After Close, Go runs nothing and returns false.
func (l *Links) Go(work func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wg.Go(func() { work(l.ctx) })
	return true
}

// Connected reports whether the sandbox's supervisor is linked.
func (l *Links) Connected(sandboxID string) bool {
	return l.current(sandboxID) != nil
}

// Connect links the sandbox's supervisor and returns once its exits reach the ledger. It
// makes one attempt, bounded by ctx.
func (l *Links) Connect(ctx context.Context, sandboxID string) error {
	if l.Connected(sandboxID) {
		return nil
	}
	err := l.allowed(sandboxID)
	if err == nil {
		err = l.connect(ctx, sandboxID)
	}
	if err != nil {
		l.Fail(sandboxID, err)
	}
	return err
}

// Fail stores why a sandbox could not be linked. If err has the class
// errdefs.ErrFailedPrecondition, nobody can link it before something is repaired, so the
// calls that wait for the link get err.
func (l *Links) Fail(sandboxID string, err error) {
	if f := fault.Of(err); f != nil {
		_ = f.With("sandbox_id", sandboxID)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[sandboxID] != nil {
		return
	}
	f := &failure{err: err}
	l.failures[sandboxID] = f
	if f.final() {
		l.wakeLocked(sandboxID)
	}
}

func (l *Links) wakeLocked(sandboxID string) {
	if w := l.waiting[sandboxID]; w != nil {
		close(w.news)
		w.news = make(chan struct{})
	}
}

func (l *Links) connect(ctx context.Context, sandboxID string) error {
	boot, err := l.readBoot(sandboxID)
	if err != nil {
		return err
	}
	conn, err := guest.Dial(ctx, l.paths.GuestLink(sandboxID), l.Check(sandboxID))
	if err != nil {
		return err
	}
	lk := &Link{
		SandboxID: sandboxID, Conn: conn, Boot: boot, Made: l.now(),
		logs: findLogFolder(l.paths.SandboxLogs(sandboxID), conn),
	}
	ready := make(chan struct{})
	ended := make(chan struct{})
	if !l.Go(func(ctx context.Context) {
		defer close(ended)
		l.listen(ctx, lk, ready)
	}) {
		_ = conn.Close()
		return context.Canceled
	}
	select {
	case <-ready:
		return nil
	case <-ended:
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
			"The supervisor of sandbox %s broke off.", sandboxID).With("sandbox_id", sandboxID)
	case <-ctx.Done():
		_ = conn.Close()
		<-ended // a sandbox has at most one listener
		return ctx.Err()
	}
}

func (l *Links) readBoot(sandboxID string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(l.paths.GuestBoot(sandboxID))
	if err != nil {
		return nil, fmt.Errorf("read the supervisor's boot configuration: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := proto.Unmarshal(raw, boot); err != nil {
		return nil, fmt.Errorf("decode the supervisor's boot configuration: %w", err)
	}
	return boot, nil
}

// listen passes reports on until the link breaks. The link is published once the
// supervisor has confirmed that it reports exits: the end of an exec that was started
// earlier could be missed.
func (l *Links) listen(ctx context.Context, lk *Link, ready chan<- struct{}) {
	defer lk.Conn.Close()
	sb, _ := l.ledger.Sandbox(lk.SandboxID)
	lk.asked = sb.Execs
	err := lk.Conn.Watch(ctx, slices.Collect(maps.Keys(lk.asked)), func() {
		missed := l.publish(lk)
		close(ready)
		l.follow(lk)
		for _, id := range missed {
			l.reports.Missed(ctx, lk, id)
		}
	}, func(rec *guestv1.ExecRecord) {
		l.reports.Report(ctx, lk, rec)
	})
	l.forget(lk)
	if ctx.Err() == nil {
		l.log.Debug("supervisor link lost", "sandbox_id", lk.SandboxID, "error", err)
		l.lost(lk.SandboxID)
	}
}

// publish makes the link available. It returns the execs that were accepted over an
// earlier link after this one made its query. The start of a later exec fails and finds
// this link.
func (l *Links) publish(lk *Link) (missed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links[lk.SandboxID] = lk
	l.countLocked(lk.SandboxID, lk.Made)
	sb, _ := l.ledger.Sandbox(lk.SandboxID)
	for id := range sb.Execs {
		if !lk.Asked(id) {
			missed = append(missed, id)
		}
	}
	delete(l.failures, lk.SandboxID)
	l.wakeLocked(lk.SandboxID)
	return missed
}

// Drop breaks the sandbox's link, if there is one, and forgets why the last one could not
// be made.
func (l *Links) Drop(sandboxID string) {
	l.mu.Lock()
	lk := l.links[sandboxID]
	delete(l.links, sandboxID)
	delete(l.failures, sandboxID)
	delete(l.made, sandboxID)
	l.mu.Unlock()
	if lk != nil {
		_ = lk.Conn.Close()
	}
}

func (l *Links) forget(lk *Link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[lk.SandboxID] == lk {
		delete(l.links, lk.SandboxID)
	}
}

// Get returns the link of a sandbox without waiting for one.
func (l *Links) Get(sandboxID string) (*Link, error) {
	if lk := l.current(sandboxID); lk != nil {
		return lk, nil
	}
	return nil, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
		"The supervisor of sandbox %s is not linked.", sandboxID).With("sandbox_id", sandboxID)
}

func (l *Links) current(sandboxID string) *Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.links[sandboxID]
}

// Wait returns the sandbox's link, and waits a bounded time for one that is being made.
// It returns an error at once for a sandbox that is not READY or is being stopped, or
// whose supervisor cannot be trusted.
func (l *Links) Wait(ctx context.Context, sandboxID string) (*Link, error) {
	if lk := l.current(sandboxID); lk != nil {
		return lk, nil
	}
	timeout := time.NewTimer(waitAtMost)
	defer timeout.Stop()
	l.enter(sandboxID)
	defer l.leave(sandboxID)
	_, before, _ := l.look(sandboxID)
	if before.final() {
		l.lost(sandboxID) // the socket may have been repaired since
	}
	for {
		lk, failed, news := l.look(sandboxID)
		switch {
		case lk != nil:
			return lk, nil
		case failed != before && failed.final():
			return nil, failed.err
		}
		changed := l.ledger.Changed(sandboxID)
		sb, living := l.ledger.Sandbox(sandboxID)
		if !living {
			return nil, l.ledger.NotLiving(ctx, sandboxID)
		}
		if sb.State != machine.Ready || sb.Want != machine.WantRunning {
			return nil, ledger.NotReady(sb.Record)
		}
		select {
		case <-news:
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.stopping:
			return nil, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping; try again.")
		case <-timeout.C:
			_, failed, _ := l.look(sandboxID)
			return nil, unreachable(sandboxID, failed)
		}
	}
}

// enter counts a call that begins to wait for a link.
func (l *Links) enter(sandboxID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[sandboxID]
	if w == nil {
		w = &awaited{news: make(chan struct{})}
		l.waiting[sandboxID] = w
	}
	w.calls++
}

// leave undoes enter. The last call takes the entry with it.
func (l *Links) leave(sandboxID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waiting[sandboxID]
	if w.calls--; w.calls == 0 {
		delete(l.waiting, sandboxID)
	}
}

// look returns the link of a sandbox. Without a link it returns the last error, if there
// is one, and a channel that is closed when this changes. The caller has called enter.
func (l *Links) look(sandboxID string) (*Link, *failure, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.links[sandboxID], l.failures[sandboxID], l.waiting[sandboxID].news
}

// unreachable is the error of a wait for a link that was not made.
func unreachable(sandboxID string, last *failure) error {
	if last.final() {
		return last.err
	}
	f := fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
		"The supervisor of sandbox %s cannot be reached; try again, and if it lasts, stop and start the sandbox.", sandboxID)
	if last != nil {
		if cause := fault.Of(last.err); cause != nil {
			f.Message = cause.Message
		}
		_ = f.Because(last.err)
	}
	return f.With("sandbox_id", sandboxID)
}

// Link is one linked supervisor.
type Link struct {
	SandboxID string
	Conn      *guest.Conn
	// Boot is the boot configuration of the supervisor, with the default user and
	// directory of execs.
	Boot *guestv1.BootConfig
	// Made is when the connection was made.
	Made time.Time
	// MainDecided is set once the ledger has decided, over this link, about the record of
	// the container's own command.
	MainDecided atomic.Bool
	// LostSought is set once all execs were looked for, over this link, that were recorded as lost.
	LostSought atomic.Bool

	logs logFolder
	// asked are the execs that the link queries first.
	asked map[string]machine.Exec

	mu sync.Mutex // guards missed
	// missed are the execs for which Miss has returned true.
	missed map[string]struct{}
}

// Miss reports whether the supervisor has not yet denied, over this link, that it knows
// the exec. A supervisor in order does so once; one that repeats it costs nothing. Call
// it only for execs that are recorded as running, of which the sandbox has few.
func (lk *Link) Miss(execID string) bool {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if _, again := lk.missed[execID]; again {
		return false
	}
	if lk.missed == nil {
		lk.missed = make(map[string]struct{})
	}
	lk.missed[execID] = struct{}{}
	return true
}

// Asked reports whether the link queried the exec when it was made.
func (lk *Link) Asked(execID string) bool {
	_, asked := lk.asked[execID]
	return asked
}

// Break ends the link. The loop makes the next one.
func (lk *Link) Break() { _ = lk.Conn.Close() }
