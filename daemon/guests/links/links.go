// Package links has the daemon's connections to the supervisors of sandboxes.
//
// Each linked sandbox has a goroutine that receives the reports of its supervisor. Links
// owns these goroutines, and work over a link that outlives the call that started it.
package links

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

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
	made map[string][]time.Time
	// broken has what is known of the links that supervisors have broken.
	broken map[string]*breaks
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

// breaks are the links that a supervisor has broken since its sandbox was started: it has violated
// the protocol, or ended a link before that was made.
type breaks struct {
	err         error // of the last one, or the first violation
	times       int
	first, last time.Time
}

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
		broken:   make(map[string]*breaks),
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

// Connected reports whether the sandbox's supervisor is linked, and told what it must know before anything
// runs.
func (l *Links) Connected(sandboxID string) bool {
	return l.current(sandboxID) != nil
}

func (l *Links) wakeLocked(sandboxID string) {
	if w := l.waiting[sandboxID]; w != nil {
		close(w.news)
		w.news = make(chan struct{})
	}
}

// Drop breaks the sandbox's link, if there is one, and forgets why the last one could not
// be made.
func (l *Links) Drop(sandboxID string) {
	l.mu.Lock()
	lk := l.links[sandboxID]
	delete(l.links, sandboxID)
	delete(l.failures, sandboxID)
	delete(l.made, sandboxID)
	delete(l.broken, sandboxID)
	l.mu.Unlock()
	if lk != nil {
		lk.Conn.Close()
	}
}

// Discard breaks the sandbox's link, if there is one. Unlike after Drop, it counts as one that the supervisor
// has used up, and nothing asks for the next one.
func (l *Links) Discard(sandboxID string) {
	l.mu.Lock()
	lk := l.links[sandboxID]
	delete(l.links, sandboxID)
	if lk != nil {
		lk.discarded = true
	}
	l.mu.Unlock()
	if lk != nil {
		lk.Conn.Close()
	}
}

// forget forgets a link that has broken, and reports whether the next one is due.
func (l *Links) forget(lk *Link) (due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[lk.SandboxID] == lk {
		delete(l.links, lk.SandboxID)
	}
	return !lk.discarded
}

// Get returns the link of a sandbox without waiting for one.
func (l *Links) Get(sandboxID string) (*Link, error) {
	if lk := l.current(sandboxID); lk != nil {
		return lk, nil
	}
	return nil, notLinked(sandboxID)
}

func notLinked(sandboxID string) error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
		"The supervisor of sandbox %s is not linked.", sandboxID).With("sandbox_id", sandboxID)
}

// current returns the link of a sandbox, unless it is held.
func (l *Links) current(sandboxID string) *Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.currentLocked(sandboxID)
}

func (l *Links) currentLocked(sandboxID string) *Link {
	if lk := l.links[sandboxID]; lk != nil && !lk.held {
		return lk
	}
	return nil
}

// Configure tells the supervisor of a sandbox that was made ahead whose it is: by a boot configuration, and
// entries "NAME=value" of the environment of commands. Nobody gets a new link of such a sandbox before. If
// there is no link, the caller makes one first. A second call over a link has no effect.
func (l *Links) Configure(ctx context.Context, sandboxID string, boot *guestv1.BootConfig, env []string, hostname string) error {
	l.mu.Lock()
	lk := l.links[sandboxID]
	l.mu.Unlock()
	if lk == nil {
		return notLinked(sandboxID)
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if err := lk.Conn.Configure(ctx, boot, env, hostname); err != nil {
		return err
	}
	lk.boot.Store(boot)
	l.mu.Lock()
	defer l.mu.Unlock()
	lk.held = false
	l.wakeLocked(sandboxID)
	return nil
}

// Link is one linked supervisor.
type Link struct {
	SandboxID string
	Conn      *guest.Conn
	// boot is the boot configuration of the supervisor.
	boot atomic.Pointer[guestv1.BootConfig]
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
	// held means that nobody gets the link before Configure, discarded that Discard has ended it. Links.mu
	// guards both.
	held, discarded bool

	mu sync.Mutex // guards missed
	// missed are the execs for which Miss has returned true.
	missed map[string]struct{}
}

// Boot is the boot configuration of the supervisor, with the default user and directory of execs.
func (lk *Link) Boot() *guestv1.BootConfig { return lk.boot.Load() }

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
func (lk *Link) Break() { lk.Conn.Close() }

// logFolder is the log folder of a sandbox as the daemon found it when the link was made.
// The container has it mounted. After its removal the supervisor still writes to the old
// folder, which nobody outside can read, and no mount of a running container can be
// replaced.
type logFolder struct {
	path string
	// found is nil if the folder could not be looked at.
	found os.FileInfo
	// deleted is true if the supervisor's folder was removed before the link was made.
	deleted bool
}
