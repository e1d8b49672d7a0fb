package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// Conn is a connection to one supervisor. Its methods may be called from several
// goroutines. They return when ctx ends, or when a request could not be sent for
// five seconds. Errors are those of Dial, and:
//
//   - errdefs.ErrInvalidArgument, errdefs.ErrResourceExhausted and the like when
//     the supervisor refused the call,
//   - ctx.Err() when ctx was cancelled.
type Conn struct {
	rpc     *ttrpc.Client
	client  guestv1.SupervisorClient
	guard   *guard
	done    chan struct{}
	bootID  string
	version string
	// mainID is the exec id of the container's own command; set anew by Release.
	mainID atomic.Pointer[string]
	// protocol is the version that the supervisor speaks.
	protocol uint32
}

// BootID is the life of the supervisor. A record with phase RUNNING and another
// boot id is of an exec that was lost.
func (c *Conn) BootID() string { return c.bootID }

// Version is the build of the supervisor.
func (c *Conn) Version() string { return c.version }

// MainExecID is the exec id of the container's own command in this life of the
// supervisor; empty when it has none, or the supervisor is too old to say.
func (c *Conn) MainExecID() string { return *c.mainID.Load() }

// Release lets the container's own command start if the supervisor was told to hold
// it back; MainExecID then tells its exec id. A supervisor that is too old to hold it
// back has started it already.
func (c *Conn) Release(ctx context.Context) error {
	reply, err := c.client.Release(ctx, &guestv1.ReleaseRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return nil
	case err != nil:
		return c.explain(ctx, err)
	}
	id := reply.GetMainExecId()
	if id != "" && !ids.Valid(id) {
		return c.lie("it named its own command by an impossible id")
	}
	c.mainID.Store(&id)
	return nil
}

// Limits tells whether the supervisor honours the limits of a StartRequest.
func (c *Conn) Limits() bool { return c.protocol >= wire.LimitsSince }

// Done is closed when the connection is lost or closed.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close closes the connection and returns when its goroutine has ended.
func (c *Conn) Close() error {
	err := c.rpc.Close()
	<-c.done
	return err
}

// CheckCommand refuses a command line and environment ("KEY=value") over the
// kernel's limit, with COMMAND_TOO_LONG.
func CheckCommand(command, env []string) error {
	if err := wire.CheckArguments(command, env); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
			"The command is too long: %v. Pass long data in a file or on standard input instead.", err)
	}
	return nil
}

// Start starts an exec, at most once per exec id, ever: when the id is known it
// returns the record of the first start. A command that cannot be started is a
// record with phase FAILED, not an error. The exec may have ended, and Watch
// reported it, before Start returns.
func (c *Conn) Start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.ExecRecord, error) {
	if err := CheckCommand(req.GetCommand(), req.GetEnv()); err != nil {
		return nil, err
	}
	reply, err := c.client.Start(ctx, req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	record := reply.GetExec()
	if record.GetExecId() != req.GetExecId() || record.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_UNKNOWN {
		return nil, c.lie("it answered for another exec than was asked")
	}
	return record, c.check(record)
}

// Cancel ends an exec: SIGTERM to its process group, and after the grace period
// SIGKILL to what is left of its tree. It returns at once; false means that the
// exec is not running.
func (c *Conn) Cancel(ctx context.Context, execID string, grace time.Duration) (bool, error) {
	ms := min(max(grace.Milliseconds(), 0), 1<<32-1)
	reply, err := c.client.Cancel(ctx, &guestv1.CancelRequest{ExecId: execID, GraceMs: uint32(ms)})
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}

// Signal sends a signal, 1 to 64, to the process group of an exec. False means
// that the exec is not running.
func (c *Conn) Signal(ctx context.Context, execID string, signal int32) (bool, error) {
	reply, err := c.client.Signal(ctx, &guestv1.SignalRequest{ExecId: execID, Signal: signal})
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}

// Watch calls watching once, when every exit from then on is sure to be reported,
// then report with each of the asked execs that is not running, then with every
// exec of the sandbox as it ends, until ctx ends or the connection is lost; it
// always returns an error. Each end is reported at least once; execs that were
// not asked for are reported too, the container's own command for example.
//
// report must be quick: a watcher that is too slow is cut off and has to watch
// again. The protocol cannot end a watch alone, so the connection is closed when
// Watch returns.
func (c *Conn) Watch(ctx context.Context, execIDs []string, watching func(), report func(*guestv1.ExecRecord)) error {
	defer func() { _ = c.Close() }()
	stream, err := c.client.Watch(ctx, &guestv1.WatchRequest{ExecIds: execIDs})
	if err != nil {
		return c.explain(ctx, err)
	}
	for first := true; ; first = false {
		reply, err := stream.Recv()
		if err != nil {
			return c.explain(ctx, err)
		}
		record := reply.GetExec()
		if record == nil && !reply.GetWatching() {
			// The end of the stream can come as an empty message.
			return c.explain(ctx, io.EOF)
		}
		if reply.GetWatching() != first {
			return c.lie("its watch does not begin with the word that it watches")
		}
		if first {
			watching()
			continue
		}
		if err := c.check(record); err != nil {
			return err
		}
		report(record)
	}
}

const (
	// maxEndCause leaves room for causes that a newer supervisor may know.
	maxEndCause = 63
	// maxMicroseconds is what a time.Duration holds.
	maxMicroseconds = uint64(math.MaxInt64 / time.Microsecond)
)

// check refuses a record that no supervisor would send.
func (c *Conn) check(r *guestv1.ExecRecord) error {
	if what := impossible(r); what != "" {
		return c.lie("it sent " + what)
	}
	return nil
}

// CheckRecord refuses a record that no supervisor would write. A status file is as
// much under the hand of the container as what comes over the link.
func CheckRecord(r *guestv1.ExecRecord) error {
	if what := impossible(r); what != "" {
		return fmt.Errorf("it holds %s: %w", what, errdefs.ErrDataLoss)
	}
	return nil
}

// impossible names what is wrong with a record; nothing if a supervisor can have
// made it.
func impossible(r *guestv1.ExecRecord) string {
	_, phase := guestv1.ExecPhase_name[int32(r.GetPhase())]
	switch {
	case !ids.Valid(r.GetExecId()):
		return "an exec id that is not valid"
	case !phase:
		return "an exec in a state that does not exist"
	case len(r.GetFailureMessage()) > wire.MaxFailureMessage || len(r.GetBootId()) > wire.MaxBootID:
		return "a text over the limit"
	case r.GetExitCode() < 0 || r.GetExitCode() > 255 || r.GetSignal() < 0 || r.GetSignal() > 127 || r.GetPid() < 0:
		return "an exit status that does not exist"
	case r.GetStartedAt() != nil && !r.GetStartedAt().IsValid(),
		r.GetFinishedAt() != nil && !r.GetFinishedAt().IsValid():
		return "a time that does not exist"
	case r.GetEndCause() < 0 || r.GetEndCause() > maxEndCause:
		return "a cause that does not exist"
	case max(r.GetUserUs(), r.GetSystemUs()) > maxMicroseconds:
		return "a processor time that cannot be"
	case max(r.GetPeakMemoryBytes(), r.GetStdoutBytes(), r.GetStderrBytes(), r.GetStdoutDroppedBytes(), r.GetStderrDroppedBytes()) > math.MaxInt64:
		return "a number of bytes that cannot be"
	}
	return ""
}

// lie ends the connection.
func (c *Conn) lie(what string) error {
	return errors.Join(tampered(what, nil), c.Close())
}

// explain gives an error of a call its class.
func (c *Conn) explain(ctx context.Context, err error) error {
	if breach := c.guard.breach(); breach != nil {
		return tampered("it broke the protocol", breach)
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		return unreachable("there was no answer in time", ctx.Err())
	}
	st, ok := status.FromError(err)
	if !ok {
		return unreachable("the connection was lost", err)
	}
	switch st.Code() {
	case codes.InvalidArgument:
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The supervisor refused the request: %s.", bounded(st.Message()))
	case codes.ResourceExhausted:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The supervisor has too much to do: %s. Try again later.", bounded(st.Message()))
	case codes.Unimplemented:
		return fault.New(errdefs.ErrNotImplemented, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
			"The sandbox's supervisor is older than this daemon and cannot do that: create a new sandbox.")
	case codes.DeadlineExceeded: // the supervisor saw the end of ctx first
		return unreachable("there was no answer in time", context.DeadlineExceeded)
	case codes.Unavailable, codes.Aborted, codes.Canceled:
		return unreachable(bounded(st.Message()), err)
	}
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
		"The sandbox's supervisor failed: %s.", bounded(st.Message())).Because(err)
}

// bounded cuts a text of the supervisor. What is left of a character that was cut
// would keep the whole error from being sent on.
func bounded(s string) string {
	const longest = 512
	return strings.ToValidUTF8(s[:min(len(s), longest)], "")
}
