package reconcile

import "context"

// Quiesce lets the engine's verbs under way end and lets no further one begin,
// for good; only Run's end follows. An engine carries out a call whose caller has
// gone away, and the next daemon, which looks before that is done, would do it
// again. ctx bounds the wait.
func (l *Loop) Quiesce(ctx context.Context) error {
	for _, slots := range []chan struct{}{l.slots, l.stops} {
		for range cap(slots) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
