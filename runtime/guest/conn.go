// Package guest is the daemon's end of the link to the supervisor in a sandbox.
//
// A container may run hostile code, so the socket and every reply are untrusted:
// the socket is opened without following symbolic links, and replies are bounded
// and checked before use.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/internal/version"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// Conn is a connection to one supervisor. Its methods are safe for concurrent use.
// They return when ctx is done, or when the supervisor does not read a request for
// five seconds. Their errors are those of Dial, and:
//
//   - errdefs.ErrInvalidArgument, errdefs.ErrResourceExhausted and the like if the
//     supervisor refused the call,
//   - ctx.Err() if ctx was cancelled.
type Conn struct {
	rpc     *rpc.Client
	bootID  string
	version string
	// mainID is the exec id of the container's own command. Release updates it.
	mainID atomic.Pointer[string]
	// logsDeleted is what the greeting said of the log directory.
	logsDeleted bool
	// protocol is the supervisor's protocol version.
	protocol uint32
	// violated says which message has broken the protocol; nil if none has.
	violated atomic.Pointer[string]
}

// BootID identifies one run of the supervisor. A record with phase RUNNING and
// another boot id belongs to an exec that was lost.
func (c *Conn) BootID() string { return c.bootID }

// Version is the version of the supervisor's build.
func (c *Conn) Version() string { return c.version }

// MainExecID is the exec id of the container's own command in this run of the
// supervisor. It is empty if there is no such command, or if the supervisor is too
// old to report it.
func (c *Conn) MainExecID() string { return *c.mainID.Load() }

// LogsDeleted reports whether the supervisor's log directory had been removed on the
// host when the connection was made. It is false if the supervisor is too old to report
// it.
func (c *Conn) LogsDeleted() bool { return c.logsDeleted }

// Configure replaces the supervisor's boot configuration, and sets entries "NAME=value" of the
// environment of commands, before its own command was started. hostname is what the container is called.
// If that command was started it was configured before, and stays so: a daemon of another version may
// derive something else from the same specification.
func (c *Conn) Configure(ctx context.Context, boot *guestv1.BootConfig, env []string, hostname string) error {
	_, err := call[guestv1.ConfigureResponse](ctx, c, "Supervisor/Configure", &guestv1.ConfigureRequest{Boot: boot, Env: env, Hostname: hostname})
	if err != nil && codeOf(err) != rpc.FailedPrecondition {
		return c.explain(ctx, err)
	}
	return nil
}

// Release starts the container's own command if the supervisor was configured to
// hold it back. MainExecID returns its exec id afterwards. A supervisor that is too
// old to hold the command back has started it already; Release then does nothing.
func (c *Conn) Release(ctx context.Context) error {
	reply, err := call[guestv1.ReleaseResponse](ctx, c, "Supervisor/Release", &guestv1.ReleaseRequest{})
	switch {
	case codeOf(err) == rpc.Unimplemented:
		return nil
	case err != nil:
		return c.explain(ctx, err)
	}
	id := reply.GetMainExecId()
	if id != "" && !ids.Valid(id) {
		return c.violation("it sent an invalid exec id of its own command")
	}
	c.mainID.Store(&id)
	return nil
}

// Limits reports whether the supervisor enforces the limits of a StartRequest.
func (c *Conn) Limits() bool { return c.protocol >= rpc.LimitsSince }

// Done is closed when the connection is lost or closed.
func (c *Conn) Done() <-chan struct{} { return c.rpc.Done() }

// Close closes the connection and waits for its goroutine.
func (c *Conn) Close() { c.rpc.Close() }

// call makes a call to a method of guest.v1.
func call[T any, Reply rpc.Pointer[T]](ctx context.Context, c *Conn, method string, req rpc.Message) (Reply, error) {
	return rpc.Call[T, Reply](ctx, c.rpc, "guest.v1."+method, req)
}

// codeOf returns the code with which the supervisor refused a call; 0 if it did not.
func codeOf(err error) rpc.Code {
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		return e.Code
	}
	return 0
}

// CheckCommand fails with COMMAND_TOO_LONG if a command line and environment
// ("KEY=value") exceed the kernel's limit.
func CheckCommand(command, env []string) error {
	if err := rpc.CheckArguments(command, env); err != nil {
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_COMMAND_TOO_LONG,
			"The command is too long: %v. Pass long data in a file or on standard input instead.", err)
	}
	return nil
}

// Start starts an exec. The supervisor starts each exec id at most once, ever; for
// a known id, Start returns the record of the first start. A command that cannot
// be started results in a record with phase FAILED, not in an error. The exec may
// end, and Watch may report it, before Start returns.
func (c *Conn) Start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.ExecRecord, error) {
	if err := CheckCommand(req.GetCommand(), req.GetEnv()); err != nil {
		return nil, err
	}
	reply, err := call[guestv1.StartResponse](ctx, c, "Supervisor/Start", req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	record := reply.GetExec()
	if record.GetExecId() != req.GetExecId() || record.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_UNKNOWN {
		return nil, c.violation("it answered for an exec that was not requested")
	}
	return record, c.check(record)
}

// Cancel cancels an exec: the supervisor sends SIGTERM to its process group, and
// after the grace period SIGKILL to the remaining processes of its tree. Cancel does
// not wait for that. False means that the exec is not running.
func (c *Conn) Cancel(ctx context.Context, execID string, grace time.Duration) (bool, error) {
	return c.cancel(ctx, &guestv1.CancelRequest{ExecId: execID}, grace)
}

// Reap is Cancel for an incarnation of an agent that must be replaced. Its record says so.
func (c *Conn) Reap(ctx context.Context, execID string, grace time.Duration) (bool, error) {
	return c.cancel(ctx, &guestv1.CancelRequest{ExecId: execID, Reap: true}, grace)
}

func (c *Conn) cancel(ctx context.Context, req *guestv1.CancelRequest, grace time.Duration) (bool, error) {
	req.GraceMs = uint32(min(max(grace.Milliseconds(), 0), 1<<32-1))
	reply, err := call[guestv1.CancelResponse](ctx, c, "Supervisor/Cancel", req)
	return c.running(ctx, reply, err)
}

// running returns what a reply says about the exec, and explains the error of the call.
func (c *Conn) running(ctx context.Context, reply interface{ GetRunning() bool }, err error) (bool, error) {
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetRunning(), nil
}

// Signal sends a signal, 1 to 64, to the process group of an exec. False means
// that the exec is not running.
func (c *Conn) Signal(ctx context.Context, execID string, signal int32) (bool, error) {
	reply, err := call[guestv1.SignalResponse](ctx, c, "Supervisor/Signal", &guestv1.SignalRequest{ExecId: execID, Signal: signal})
	return c.running(ctx, reply, err)
}

// Watch reports the ends of execs until ctx is cancelled or the connection is
// lost. It always returns an error. It calls watching once, when the supervisor
// has subscribed it: every exit after that will be reported. Then it calls report
// for each exec in execIDs that is not running, and after that for every exec of
// the sandbox that ends, including execs that are not in execIDs, such as the
// container's own command. Each end is reported at least once.
//
// report must be quick: the supervisor disconnects a watcher that is too slow,
// which then has to watch again. The protocol cannot cancel a single call, so Watch closes
// the connection when it returns.
func (c *Conn) Watch(ctx context.Context, execIDs []string, watching func(), report func(*guestv1.ExecRecord)) error {
	defer c.Close()
	stream, err := c.rpc.Stream(ctx, "guest.v1.Supervisor/Watch", &guestv1.WatchRequest{ExecIds: execIDs})
	if err != nil {
		return c.explain(ctx, err)
	}
	for first := true; ; first = false {
		reply := new(guestv1.WatchResponse)
		if err := stream.Recv(reply); err != nil {
			return c.explain(ctx, err)
		}
		record := reply.GetExec()
		if record == nil && !reply.GetWatching() {
			// A supervisor can end the stream with an empty message.
			return c.explain(ctx, io.EOF)
		}
		if reply.GetWatching() != first {
			return c.violation("its watch does not begin with the message that confirms it")
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
	// maxEndCause leaves room for the causes of newer supervisors.
	maxEndCause = 63
	// maxMicroseconds is the maximum of a time.Duration.
	maxMicroseconds = uint64(math.MaxInt64 / time.Microsecond)
)

// check closes the connection and returns an error if the record is invalid.
func (c *Conn) check(r *guestv1.ExecRecord) error {
	if what := invalid(r); what != "" {
		return c.violation("it sent " + what)
	}
	return nil
}

// CheckRecord returns an error if a record from a status file is invalid. The
// container can write status files, so they are as untrusted as the link.
func CheckRecord(r *guestv1.ExecRecord) error {
	if what := invalid(r); what != "" {
		return fmt.Errorf("it holds %s: %w", what, errdefs.ErrDataLoss)
	}
	return nil
}

// invalid describes the first invalid field of a record; it is empty if the record
// is valid.
func invalid(r *guestv1.ExecRecord) string {
	_, phase := guestv1.ExecPhase_name[int32(r.GetPhase())]
	switch {
	case !ids.Valid(r.GetExecId()):
		return "an exec id that is not valid"
	case !phase:
		return "an exec in a state that does not exist"
	case len(r.GetFailureMessage()) > rpc.MaxFailureMessage || len(r.GetBootId()) > rpc.MaxBootID:
		return "a text that is too long"
	case r.GetRequest().SizeVT() > rpc.MaxRecordedRequest:
		return "a request that is too long"
	case r.GetExitCode() < 0 || r.GetExitCode() > 255 || r.GetSignal() < 0 || r.GetSignal() > 127 || r.GetPid() < 0:
		return "an exit status that does not exist"
	case r.GetStartedAt() != nil && !r.GetStartedAt().IsValid(),
		r.GetFinishedAt() != nil && !r.GetFinishedAt().IsValid():
		return "a time that does not exist"
	case r.GetEndCause() < 0 || r.GetEndCause() > maxEndCause:
		return "a cause that does not exist"
	case max(r.GetUserUs(), r.GetSystemUs()) > maxMicroseconds:
		return "a processor time that is too large"
	case max(r.GetPeakMemoryBytes(), r.GetStdoutBytes(), r.GetStderrBytes(), r.GetStdoutDroppedBytes(), r.GetStderrDroppedBytes()) > math.MaxInt64:
		return "a number of bytes that is too large"
	}
	return ""
}

// violation closes the connection and returns the error for a message that breaks
// the protocol.
func (c *Conn) violation(what string) error {
	c.violated.Store(&what)
	c.Close()
	return Tampered(what, nil)
}

// explain turns the error of a call into a fault with a class.
func (c *Conn) explain(ctx context.Context, err error) error {
	if breach := c.rpc.Breach(); breach != nil {
		return Tampered("it broke the protocol", breach)
	}
	if what := c.violated.Load(); what != nil {
		return Tampered(*what, nil)
	}
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return ctx.Err()
		}
		return unreachable("there was no answer in time", ctx.Err())
	}
	refused, ok := errors.AsType[*rpc.Error](err)
	if !ok {
		return unreachable("the connection was lost", err)
	}
	switch refused.Code {
	case rpc.InvalidArgument:
		return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
			"The supervisor refused the request: %s.", bounded(refused.Message))
	case rpc.ResourceExhausted:
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_OVERLOADED,
			"The sandbox's supervisor is overloaded: %s. Try again later.", bounded(refused.Message))
	case rpc.Unimplemented:
		return fault.New(errdefs.ErrNotImplemented, agboxv1.ErrorReason_UNSUPPORTED_SPEC,
			"The sandbox's supervisor is older than this daemon and does not support this: create a new sandbox.")
	case rpc.DeadlineExceeded: // the supervisor's deadline passed before ours
		return unreachable("there was no answer in time", context.DeadlineExceeded)
	case rpc.Unavailable, rpc.Aborted, rpc.Canceled:
		return unreachable(bounded(refused.Message), err)
	}
	return fault.New(errdefs.ErrInternal, agboxv1.ErrorReason_INTERNAL_ERROR,
		"The sandbox's supervisor failed: %s.", bounded(refused.Message)).Because(err)
}

// bounded truncates a text of the supervisor. It drops a character that was cut in
// half, because gRPC cannot send an error with invalid UTF-8.
func bounded(s string) string {
	const longest = 512
	return strings.ToValidUTF8(s[:min(len(s), longest)], "")
}

// Check decides about the process that listens on a socket, before anything is sent to
// it. pid is 0 if the process has no id in the PID namespace of this daemon. A refusal
// should be Tampered, or an error that says why nobody can tell.
type Check func(ctx context.Context, pid int) error

// Dial connects to the supervisor that listens in linkDir and exchanges greetings.
// ctx bounds both, and the call of check. Its errors are those of check, and fault.Errors:
//
//   - SUPERVISOR_UNREACHABLE (errdefs.ErrUnavailable): nothing listens there, or
//     the answer did not come in time; a retry may succeed.
//   - SUPERVISOR_TAMPERED (errdefs.ErrFailedPrecondition): the socket was replaced,
//     or the supervisor violates the protocol.
//
// Dial accepts supervisors of every protocol version from 1 on, older and newer
// than this build.
func Dial(ctx context.Context, linkDir string, check Check) (*Conn, error) {
	raw, err := connect(ctx, linkDir, check)
	if err != nil {
		return nil, err
	}
	c := &Conn{rpc: rpc.NewClient(raw)}
	if err := c.hello(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// connect opens the socket in the directory and connects through its descriptor, so
// that the container cannot replace it in between. The path in /proc also avoids
// the length limit of socket addresses.
func connect(ctx context.Context, linkDir string, check Check) (net.Conn, error) {
	dir, err := unix.Open(linkDir, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(linkDir, err)
	}
	defer func() { _ = unix.Close(dir) }()
	sock, err := unix.Openat(dir, paths.LinkSocket, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(linkDir+"/"+paths.LinkSocket, err)
	}
	defer func() { _ = unix.Close(sock) }()
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return nil, openError(linkDir+"/"+paths.LinkSocket, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, Tampered("its socket was replaced by something that is not a socket", nil)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock))
	if err != nil {
		return nil, unreachable("nothing accepts connections on its socket", err)
	}
	// The kernel keeps the credentials of the process that called listen.
	pid, err := process.Peer(conn)
	if err != nil {
		return nil, errors.Join(unreachable("the kernel does not tell who listens on its socket", err), conn.Close())
	}
	if err := check(ctx, pid); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return Tampered("its link directory was replaced", err)
	case errors.Is(err, unix.ENOENT):
		return unreachable("its socket does not exist", err)
	}
	return unreachable(fmt.Sprintf("its socket %s cannot be opened", path), err)
}

// hello exchanges greetings and stores what the supervisor says about itself.
func (c *Conn) hello(ctx context.Context) error {
	reply, err := call[guestv1.HelloResponse](ctx, c, "Supervisor/Hello", &guestv1.HelloRequest{
		Protocol:      rpc.Protocol,
		DaemonVersion: version.Version,
	})
	if err != nil {
		return c.explain(ctx, err)
	}
	if reply.GetProtocol() == 0 || reply.GetBootId() == "" || len(reply.GetBootId()) > rpc.MaxBootID ||
		len(reply.GetSupervisorVersion()) > maxVersion ||
		reply.GetMainExecId() != "" && !ids.Valid(reply.GetMainExecId()) {
		return Tampered("its greeting does not follow the protocol", nil)
	}
	c.protocol = reply.GetProtocol()
	c.bootID, c.version = reply.GetBootId(), reply.GetSupervisorVersion()
	c.logsDeleted = reply.GetLogsDeleted()
	main := reply.GetMainExecId()
	c.mainID.Store(&main)
	return nil
}

// maxVersion is the maximum length of a supervisor's version, in bytes.
const maxVersion = 256

// Tampered is the error for a supervisor that somebody replaced, or that violates the
// protocol. what says which, as a clause.
func Tampered(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_TAMPERED,
		"The sandbox's supervisor can no longer be trusted: %s. Save what you need from its logs, then remove the sandbox.", what).Because(cause)
}

func unreachable(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
		"The sandbox's supervisor does not answer: %s. Try again; if that does not help, stop and start the sandbox.", what).Because(cause)
}
