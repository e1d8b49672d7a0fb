package admission

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestLifetimesThatASpecLeavesOutAreFilledIn(t *testing.T) {
	hour, never := time.Hour, time.Duration(0)
	set := Lifetimes{Idle: &hour, Cleanup: &never}
	own := &agboxv1.CreateSpec{IdleTtl: durationpb.New(0), CleanupTtl: durationpb.New(time.Second)}
	for name, tc := range map[string]struct {
		operator      Lifetimes
		published     bool
		own           bool
		idle, cleanup *durationpb.Duration
	}{
		"of a client of ours":            {},
		"of a published client":          {published: true, idle: durationpb.New(10 * time.Minute), cleanup: durationpb.New(360 * time.Hour)},
		"by the operator":                {operator: set, idle: durationpb.New(hour), cleanup: durationpb.New(0)},
		"of a published client, by them": {operator: set, published: true, idle: durationpb.New(hour), cleanup: durationpb.New(0)},
		"set by the spec":                {operator: set, published: true, own: true, idle: own.GetIdleTtl(), cleanup: own.GetCleanupTtl()},
	} {
		s := &agboxv1.CreateSpec{Published: tc.published}
		if tc.own {
			s.IdleTtl, s.CleanupTtl = own.GetIdleTtl(), own.GetCleanupTtl()
		}
		tc.operator.fill(s)
		same := func(a, b *durationpb.Duration) bool {
			return (a == nil) == (b == nil) && a.AsDuration() == b.AsDuration()
		}
		if !same(s.GetIdleTtl(), tc.idle) || !same(s.GetCleanupTtl(), tc.cleanup) {
			t.Errorf("%s: idle_ttl %v and cleanup_ttl %v, want %v and %v", name, s.GetIdleTtl(), s.GetCleanupTtl(), tc.idle, tc.cleanup)
		}
	}
}
