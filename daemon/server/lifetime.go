package server

import (
	"context"
	"sync"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

// lifetime is what calls know of the end of the daemon, and what it waits for.
type lifetime struct {
	// stopping is closed when the daemon stops.
	stopping chan struct{}
	// receivers are the goroutines that receive what clients stream, senders those
	// that send output.
	receivers, senders sync.WaitGroup
}

func newLifetime() *lifetime { return &lifetime{stopping: make(chan struct{})} }

// context returns a context that also ends when the daemon stops; its cause says so
// then. cancel must be called.
func (l *lifetime) context(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() { // waited for by cancel
		defer close(ended)
		select {
		case <-l.stopping:
			end(errStopping())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil); <-ended }
}

// stopped is the error of a call whose context ended because the daemon stops; nil
// if it did not.
func stopped(ctx context.Context) error {
	if cause := context.Cause(ctx); fault.Of(cause) != nil {
		return cause
	}
	return nil
}

// orStopped is err, or that the daemon stops where that ended the call.
func orStopped(ctx context.Context, err error) error {
	if cause := stopped(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// wait returns when something has changed. The error is why to wait no longer.
func (l *lifetime) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-l.stopping:
		return errStopping()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errStopping() error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping; try again.")
}
