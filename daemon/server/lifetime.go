package server

import (
	"context"
	"sync"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

// lifetime tells calls about the daemon's stop, and waits for their goroutines.
type lifetime struct {
	// stopping is closed when the daemon stops.
	stopping chan struct{}
	// receivers are the goroutines that receive data from clients, senders those that
	// send output.
	receivers, senders sync.WaitGroup
}

func newLifetime() *lifetime { return &lifetime{stopping: make(chan struct{})} }

// context returns a context that also ends when the daemon stops. Its cause then says so.
// cancel must be called.
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

// stopped returns the error of a call that the daemon's stop has cancelled, or nil.
func stopped(ctx context.Context) error {
	if cause := context.Cause(ctx); fault.Of(cause) != nil {
		return cause
	}
	return nil
}

// orStopped returns err, or the error of stopped if the daemon's stop ended the call.
func orStopped(ctx context.Context, err error) error {
	if cause := stopped(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// wait returns when changed is closed. An error means that waiting must end.
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
