package links

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

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
