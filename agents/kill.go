package agents

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Stronger returns the wish that replaces an earlier one, which may be nil, after a new one.
// It is nil if the earlier one stays.
func Stronger(before, wish *agboxv1.AgentKill) *agboxv1.AgentKill {
	if before == nil {
		return wish
	}
	both := proto.CloneOf(wish)
	if strength(both.GetMode()) < strength(before.GetMode()) {
		both.Mode = before.GetMode()
	}
	both.Cascade = cmp.Or(wish.GetCascade(), before.GetCascade())
	if both.GetMode() == before.GetMode() && both.GetCascade() == before.GetCascade() {
		return nil
	}
	return both
}

// strength orders the modes of a kill.
func strength(mode agboxv1.KillMode) int {
	switch mode {
	case agboxv1.KillMode_KILL_MODE_GRACEFUL:
		return 0
	case agboxv1.KillMode_KILL_MODE_NOW:
		return 2
	}
	return 1
}

// KillAcknowledged is how long a program that is asked to end by itself may take to
// acknowledge that.
const KillAcknowledged = 30 * time.Second

// EndsItself reports whether the agent is asked to end by itself.
func (r Record) EndsItself() bool {
	return r.Kill != nil && r.Kill.GetMode() == agboxv1.KillMode_KILL_MODE_GRACEFUL
}

// left reports whether a program is left alone although its agent is to end, because it was
// asked to end by itself. due is when that changes; zero means never.
func left(r Record, seen Seen, now time.Time) (alone bool, due time.Time) {
	switch until := r.KillAt.Add(KillAcknowledged); {
	case !r.EndsItself():
		return false, time.Time{}
	case seen.Acknowledged:
		return true, time.Time{}
	default:
		return now.Before(until), until
	}
}
