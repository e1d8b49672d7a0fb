package admission

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The published defaults, for sandboxes of clients of the published contract.
const (
	publishedIdleTTL    = 10 * time.Minute
	publishedCleanupTTL = 360 * time.Hour
)

// Lifetimes are the operator's lifetimes of sandboxes that do not set their own. 0 means
// never. nil means the published default for clients of the published contract, and never for
// clients of ours.
type Lifetimes struct {
	// Idle is how long a READY sandbox may be idle before it is stopped.
	Idle *time.Duration
	// Cleanup is how long a sandbox is STOPPED before it is deleted.
	Cleanup *time.Duration
}

// fill sets the lifetimes that a spec leaves out.
func (l Lifetimes) fill(s *agboxv1.CreateSpec) {
	set := func(field **durationpb.Duration, setting *time.Duration, published time.Duration) {
		switch {
		case *field != nil:
		case setting != nil:
			*field = durationpb.New(*setting)
		case s.GetPublished():
			*field = durationpb.New(published)
		}
	}
	set(&s.IdleTtl, l.Idle, publishedIdleTTL)
	set(&s.CleanupTtl, l.Cleanup, publishedCleanupTTL)
}
