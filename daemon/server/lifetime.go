package server

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	rpcstats "google.golang.org/grpc/stats"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

const (
	// lookEvery is the pause between two looks at the calls and connections of a server
	// that stops.
	lookEvery = 10 * time.Millisecond
	// quietLooks is how many looks in a row must find no unary call and no peer that may
	// send one. So connections get 0.25 s to send the last answers, or longer on a machine
	// that gives this process no time. A client that does not read its streams, such as
	// one behind a pager, would keep its connection forever. It continues later with its
	// cursor.
	quietLooks = 25
)

// inFlight counts the running unary calls, from before their request was received until
// after their answer was queued. It is a stats.Handler of the server.
type inFlight struct {
	// mu guards what follows.
	mu      sync.Mutex
	running int
	// begun counts all calls so far.
	begun uint64
}

// count returns the number of running calls, and of calls so far.
func (f *inFlight) count() (running int, begun uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.running, f.begun
}

// rpcKey is the key of an *rpc in the context of a call.
type rpcKey struct{}

type rpc struct{ unary bool }

// TagRPC implements stats.Handler.
func (f *inFlight) TagRPC(ctx context.Context, _ *rpcstats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, rpcKey{}, new(rpc))
}

// HandleRPC implements stats.Handler.
func (f *inFlight) HandleRPC(ctx context.Context, event rpcstats.RPCStats) {
	switch event := event.(type) {
	case *rpcstats.Begin:
		if event.IsClientStream || event.IsServerStream {
			return
		}
		if call, ok := ctx.Value(rpcKey{}).(*rpc); ok {
			call.unary = true
			f.add(1, 1)
		}
	case *rpcstats.End:
		if call, ok := ctx.Value(rpcKey{}).(*rpc); ok && call.unary {
			f.add(-1, 0)
		}
	}
}

func (f *inFlight) add(running int, begun uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running += running
	f.begun += begun
}

// TagConn implements stats.Handler.
func (f *inFlight) TagConn(ctx context.Context, _ *rpcstats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (f *inFlight) HandleConn(context.Context, rpcstats.ConnStats) {}

// peers are the connections of a server that stops.
type peers interface {
	// closeSilent closes the connections over which nothing came yet.
	closeSilent()
	// mayCall reports whether a peer may still send a call.
	mayCall() bool
}

// await returns when done is closed, or earlier if no more answers can be expected: no
// peer may send a call and no unary call has run for a while, or ctx ended.
func (f *inFlight) await(ctx context.Context, peers peers, done <-chan struct{}) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for quiet, known := 0, uint64(0); quiet < quietLooks; {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-look.C:
		}
		peers.closeSilent()
		mayCall := peers.mayCall() // before the calls: a peer's last call comes before its acknowledgement
		running, begun := f.count()
		if quiet++; mayCall || running > 0 || begun != known {
			quiet, known = 0, begun
		}
	}
}
