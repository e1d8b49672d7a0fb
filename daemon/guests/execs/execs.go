// Package execs runs commands in sandboxes: it holds the link to each
// supervisor, hands it the execs that were accepted, and records how they end.
//
// One goroutine per connected sandbox listens to its supervisor; the Runner owns
// it and waits for it in Close.
package execs

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime/guest"
)

const (
	// callTimeout bounds one call to a supervisor. It answers within a
	// millisecond; a hostile one may not answer at all.
	callTimeout = 10 * time.Second
	// linkWait is how long a call waits for a link that is being made, for
	// example because the daemon has just been restarted.
	linkWait = 10 * time.Second
)

// Runner owns the links to all supervisors.
type Runner struct {
	ledger *ledger.Ledger
	paths  paths.Install
	now    func() time.Time
	log    *slog.Logger
	// lost is told the sandbox whose link broke.
	lost func(sandboxID string)

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// draining is closed when nobody shall wait for a link any more.
	draining chan struct{}

	// transfers are those of files under way, removals those of trees.
	transfers, removals turns

	// mu guards links and waiting; map work only, and looks into the ledger's memory.
	mu    sync.Mutex
	links map[string]*link
	// waiting holds a channel per sandbox that is closed when its link is made.
	waiting map[string]chan struct{}
}

// link is one connected supervisor.
type link struct {
	sandboxID string
	conn      *guest.Conn
	// boot is what the supervisor was started with: user and directory of execs
	// that name none.
	boot *guestv1.BootConfig
	made time.Time
	// asked are the execs whose state it asks for first.
	asked map[string]machine.Exec
	// mainKnown tells that the ledger was asked to record the container's own
	// command; guarded by Runner.mu.
	mainKnown bool
}

// New makes a Runner. lost is called from the Runner's goroutines and must not block.
func New(ctx context.Context, l *ledger.Ledger, install paths.Install, now func() time.Time, log *slog.Logger, lost func(sandboxID string)) *Runner {
	ctx, cancel := context.WithCancel(ctx)
	return &Runner{
		ledger: l, paths: install, now: now, log: log, lost: lost,
		ctx: ctx, cancel: cancel, draining: make(chan struct{}),
		links:   make(map[string]*link),
		waiting: make(map[string]chan struct{}),
	}
}

// Drain ends the waits for links that are still being made; to be called once,
// before Close. What is linked goes on.
func (r *Runner) Drain() { close(r.draining) }

// Close drops all links and waits for their goroutines. The execs run on.
func (r *Runner) Close() {
	r.cancel()
	r.wg.Wait()
}

// Connected tells whether the sandbox's supervisor is linked.
func (r *Runner) Connected(sandboxID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.links[sandboxID] != nil
}

// Connect links the sandbox's supervisor and returns once its exits reach the
// ledger. It tries once; ctx bounds it.
func (r *Runner) Connect(ctx context.Context, sandboxID string) error {
	if r.Connected(sandboxID) {
		return nil
	}
	boot, err := r.readBoot(sandboxID)
	if err != nil {
		return err
	}
	conn, err := guest.Dial(ctx, r.paths.GuestLink(sandboxID))
	if err != nil {
		return err
	}
	lk := &link{sandboxID: sandboxID, conn: conn, boot: boot, made: r.now()}
	ready := make(chan struct{})
	ended := make(chan struct{})
	r.wg.Go(func() {
		defer close(ended)
		r.listen(lk, ready)
	})
	select {
	case <-ready:
		return nil
	case <-ended:
		return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
			"The supervisor of sandbox %s broke off.", sandboxID).With("sandbox_id", sandboxID)
	case <-ctx.Done():
		_ = conn.Close()
		<-ended // a sandbox has one listener at a time
		return ctx.Err()
	}
}

func (r *Runner) readBoot(sandboxID string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(r.paths.GuestBoot(sandboxID))
	if err != nil {
		return nil, fmt.Errorf("read the supervisor's boot configuration: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := proto.Unmarshal(raw, boot); err != nil {
		return nil, fmt.Errorf("decode the supervisor's boot configuration: %w", err)
	}
	return boot, nil
}

// listen records exits until the link breaks. The link may be used once the
// supervisor has confirmed that it pushes exits: an exec that was started
// before that could end unheard.
func (r *Runner) listen(lk *link, ready chan<- struct{}) {
	defer lk.conn.Close()
	sb, _ := r.ledger.Sandbox(lk.sandboxID)
	lk.asked = sb.Execs
	err := lk.conn.Watch(r.ctx, slices.Collect(maps.Keys(lk.asked)), func() {
		late := r.publish(lk)
		close(ready)
		for _, id := range late {
			r.wg.Go(func() { r.startLate(lk, id) })
		}
	}, func(rec *guestv1.ExecRecord) {
		r.heard(lk, rec)
	})
	r.forget(lk)
	if r.ctx.Err() == nil {
		r.log.Debug("supervisor link lost", "sandbox_id", lk.sandboxID, "error", err)
		r.lost(lk.sandboxID)
	}
}

// asks tells whether the link asked for the exec when it was made.
func (lk *link) asks(execID string) bool {
	_, asks := lk.asked[execID]
	return asks
}

// publish has the link used. It returns the execs that were accepted over an earlier
// link since this one asked. The start of a later one fails and finds this link.
func (r *Runner) publish(lk *link) (late []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[lk.sandboxID] = lk
	sb, _ := r.ledger.Sandbox(lk.sandboxID)
	for id := range sb.Execs {
		if !lk.asks(id) {
			late = append(late, id)
		}
	}
	if ch, ok := r.waiting[lk.sandboxID]; ok {
		delete(r.waiting, lk.sandboxID)
		close(ch)
	}
	return late
}

// Drop gives up the sandbox's link, if there is one.
func (r *Runner) Drop(sandboxID string) {
	r.mu.Lock()
	lk := r.links[sandboxID]
	delete(r.links, sandboxID)
	r.mu.Unlock()
	if lk != nil {
		_ = lk.conn.Close()
	}
}

func (r *Runner) forget(lk *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[lk.sandboxID] == lk {
		delete(r.links, lk.sandboxID)
	}
}

// link returns the sandbox's link and waits a bounded time for one that is
// being made.
func (r *Runner) link(ctx context.Context, sandboxID string) (*link, error) {
	timeout := time.NewTimer(linkWait)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		lk := r.links[sandboxID]
		ch, ok := r.waiting[sandboxID]
		if lk == nil && !ok {
			ch = make(chan struct{})
			r.waiting[sandboxID] = ch
		}
		r.mu.Unlock()
		if lk != nil {
			return lk, nil
		}
		changed := r.ledger.Changed(sandboxID)
		if sb, ok := r.ledger.Sandbox(sandboxID); !ok || sb.State != agboxv1.SandboxState_SANDBOX_STATE_READY {
			return nil, ledger.NotReady(sb.Record)
		}
		select {
		case <-ch:
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.draining:
			return nil, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping; try again.")
		case <-timeout.C:
			return nil, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SANDBOX_UNREACHABLE,
				"The supervisor of sandbox %s cannot be reached; try again, and if it lasts, stop and start the sandbox.", sandboxID).
				With("sandbox_id", sandboxID)
		}
	}
}
