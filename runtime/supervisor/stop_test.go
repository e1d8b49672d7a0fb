package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// A process that the stop misses would keep it waiting for the whole grace period.
func TestTheStopReachesWhatIsJustBeingStarted(t *testing.T) {
	for _, begun := range []int{1, 2, 5} { // the others are at various stages then
		stopWhileStarting(t, begun)
	}
}

func stopWhileStarting(t *testing.T, begun int) {
	const execs = 40
	b := newBox(t, withArgs("-grace", limit.String()))
	c := b.dial()
	answered := make(chan struct{}, execs)
	replies := make([]*guestv1.ExecRecord, execs) // nil if the link ended before
	var starts sync.WaitGroup
	for i := range execs {
		starts.Go(func() {
			replies[i], _ = c.Start(t.Context(), request(fmt.Sprint("e", i), "sleep", "1000"))
			answered <- struct{}{}
		})
	}
	for range begun {
		<-answered
	}
	b.stop()
	starts.Wait()
	for i, r := range replies {
		id := fmt.Sprint("e", i)
		if _, err := os.Stat(filepath.Join(b.dir, "logs", logs.StatusName(id))); err == nil {
			r = b.status(id)
		} else if r == nil {
			continue // it did not reach the supervisor
		}
		if r.GetEndCause() != guestv1.EndCause_END_CAUSE_STOP || r.GetSignal() == int32(syscall.SIGKILL) {
			t.Error(r)
		}
	}
}
