package agent

import (
	"cmp"

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
	both.Mode = max(before.GetMode(), wish.GetMode())
	both.Cascade = cmp.Or(wish.GetCascade(), before.GetCascade())
	if both.GetMode() == before.GetMode() && both.GetCascade() == before.GetCascade() {
		return nil
	}
	return both
}
