package reconcile

import "context"

// Quiesce waits for the running engine verbs and permanently prevents further ones. Only
// the end of Run may follow. It is needed because an engine completes a call whose caller
// is gone, and the next daemon, which looks before that, would repeat it. ctx bounds the
// wait.
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
