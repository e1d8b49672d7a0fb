package links

import (
	"testing"
	"time"
)

// Kept counts what is kept of sandboxes that are not linked.
func (l *Links) Kept() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) + len(l.failures) + len(l.broken)
}

// SetWaitAtMost changes how long calls wait for a link, until the end of the test.
func SetWaitAtMost(t *testing.T, to time.Duration) {
	old := waitAtMost
	waitAtMost = to
	t.Cleanup(func() { waitAtMost = old })
}

// Unseen is unseen.
var Unseen = unseen
