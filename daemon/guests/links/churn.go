package links

import (
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
