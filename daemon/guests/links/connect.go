package links

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
)

// Connect links the sandbox's supervisor and returns once its exits reach the ledger. It
// makes one attempt, bounded by ctx. The link of a sandbox that was made ahead is held until Configure.
func (l *Links) Connect(ctx context.Context, sandboxID string) error {
	l.mu.Lock()
	linked := l.links[sandboxID] != nil
	l.mu.Unlock()
	if linked {
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

// A sandbox gets at most maxLinks links within linkWindow. A supervisor in order keeps
// its link for as long as the daemon runs, and the few reasons to replace one leave room
// enough. Each link reads the ledger, asks the supervisor for all running execs and
// starts what it does not know, so a supervisor that hangs up again and again would cost
// the daemon as much as it likes.
const (
	maxLinks   = 16
	linkWindow = 10 * time.Second
)

// allowed fails if the sandbox has used up its links. The loop tries again later.
func (l *Links) allowed(sandboxID string) error {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	made := l.made[sandboxID]
	if len(made) < maxLinks || now.Sub(made[0]) >= linkWindow {
		return nil
	}
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
		"The supervisor of sandbox %s has hung up %d times within %v, so it is linked again only after a pause. If it goes on, stop and start the sandbox.",
		sandboxID, maxLinks, linkWindow)
}

func (l *Links) countLocked(sandboxID string, at time.Time) {
	made := append(l.made[sandboxID], at)
	l.made[sandboxID] = made[max(0, len(made)-maxLinks):]
}

// followPause is how long a link stays whose incarnations are not followed any more. A
// supervisor that stops ends Follow before it has reported the last exits.
const followPause = 2 * time.Second

// follow begins to pass on the news of incarnations. A supervisor that is too old has none.
// The goroutine is one of Go. It ends with the link; if Follow ends earlier, so does the
// link, and the next one follows.
func (l *Links) follow(lk *Link) {
	if l.news == nil || !lk.Conn.Agents() {
		return
	}
	l.Go(func(ctx context.Context) {
		err := lk.Conn.Follow(ctx, func(news *guestv1.IncarnationNews) { l.news.Told(lk, news) })
		l.news.Silent(lk)
		timeout := time.NewTimer(followPause)
		defer timeout.Stop()
		select {
		case <-lk.Conn.Done():
		case <-ctx.Done():
		case <-timeout.C:
			l.log.Warn("the supervisor does not tell about incarnations of agents; the link is made anew", "sandbox_id", lk.SandboxID, "error", err)
			lk.Break()
		}
	})
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
		SandboxID: sandboxID, Conn: conn, Made: l.now(),
		logs: findLogFolder(l.paths.SandboxLogs(sandboxID), conn),
	}
	lk.boot.Store(boot)
	ready := make(chan struct{})
	ended := make(chan struct{})
	var broken error // set when ended is closed
	if !l.Go(func(ctx context.Context) {
		defer close(ended)
		broken = l.listen(ctx, lk, ready)
	}) {
		conn.Close()
		return context.Canceled
	}
	select {
	case <-ready:
		return nil
	case <-ended:
		select {
		case <-ready: // it broke as soon as it was published
			return nil
		default:
		}
		return broken
	case <-ctx.Done():
		conn.Close()
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
	if err := boot.UnmarshalVT(raw); err != nil {
		return nil, fmt.Errorf("decode the supervisor's boot configuration: %w", err)
	}
	return boot, nil
}

// listen passes reports on until the link breaks. The link is published once the
// supervisor has confirmed that it reports exits: the end of an exec that was started
// earlier could be missed. The result says why the link broke.
func (l *Links) listen(ctx context.Context, lk *Link, ready chan<- struct{}) error {
	defer lk.Conn.Close()
	sb, _ := l.ledger.Sandbox(lk.SandboxID)
	lk.asked = sb.Execs
	published := false
	err := lk.Conn.Watch(ctx, slices.Collect(maps.Keys(lk.asked)), func() {
		missed := l.publish(lk)
		published = true
		close(ready)
		l.follow(lk)
		for _, id := range missed {
			l.reports.Missed(ctx, lk, id)
		}
	}, func(rec *guestv1.ExecRecord) {
		l.reports.Report(ctx, lk, rec)
	})
	due := l.forget(lk)
	if ctx.Err() == nil && (!published || tampered(err)) {
		l.broke(lk.SandboxID, err)
	}
	if ctx.Err() == nil && published && due { // else Connect returns err, and its caller pauses before it tries again
		l.log.Debug("supervisor link lost", "sandbox_id", lk.SandboxID, "error", err)
		l.lost(lk.SandboxID)
	}
	return err
}

func tampered(err error) bool {
	return fault.ReasonOf(err) == agboxv1.ErrorReason_SUPERVISOR_TAMPERED
}

// broke notes that a supervisor has broken a link.
func (l *Links) broke(sandboxID string, err error) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.broken[sandboxID]
	if b == nil {
		b = &breaks{first: now}
		l.broken[sandboxID] = b
	}
	if !tampered(b.err) {
		b.err = err
	}
	b.last = now
	b.times++
}

// Broken says how the supervisor of a sandbox, which may be linked and greet, has broken its links,
// how often and since when; nil if it has not. A violation of the protocol counts until the sandbox is
// started again, a link that was not made until one is.
func (l *Links) Broken(sandboxID string) error {
	now := l.now()
	l.mu.Lock()
	b := l.broken[sandboxID]
	if b != nil {
		b = new(*b)
	}
	l.mu.Unlock()
	if b == nil {
		return l.allowed(sandboxID)
	}
	ago := func(at time.Time) time.Duration { return now.Sub(at).Round(time.Second) }
	often := fmt.Sprintf("It happened %v ago.", ago(b.last))
	if b.times > 1 {
		often = fmt.Sprintf("It happened %d times, the first time %v ago and the last time %v ago.", b.times, ago(b.first), ago(b.last))
	}
	return fault.New(errdefs.ErrFailedPrecondition, fault.ReasonOf(b.err), "%v %s", b.err, often).Because(b.err)
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
	lk.held = sb.Taken
	for id := range sb.Execs {
		if !lk.Asked(id) {
			missed = append(missed, id)
		}
	}
	delete(l.failures, lk.SandboxID)
	if b := l.broken[lk.SandboxID]; b != nil && !tampered(b.err) {
		delete(l.broken, lk.SandboxID)
	}
	l.wakeLocked(lk.SandboxID)
	return missed
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
	return l.currentLocked(sandboxID), l.failures[sandboxID], l.waiting[sandboxID].news
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
