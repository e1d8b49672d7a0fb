package links

import (
	"testing"
	"time"
)

// SetWaitAtMost changes how long calls wait for a link, until the end of the test.
func SetWaitAtMost(t *testing.T, to time.Duration) {
	old := waitAtMost
	waitAtMost = to
	t.Cleanup(func() { waitAtMost = old })
}
