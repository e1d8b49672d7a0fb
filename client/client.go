// Package client is the Go SDK of agbox: typed errors, waits, and streams that
// survive a restart of the daemon.
//
// A Client connects to the daemon's Unix socket on its first call. With WithAutostart
// it starts the daemon if none is running. If the daemon goes away later, the client
// waits for it: it repeats calls that may be repeated and resumes streams where they
// were. With WithAutostart it starts a daemon that crashed; for one that was stopped on purpose
// it waits.
//
// Where a method takes a sandbox or an exec, it takes an id, a prefix of an id
// that fits exactly one, or a name.
package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/proto/agbox/caller"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// DefaultReconnect is how long a client waits for a daemon that went away.
	DefaultReconnect = 30 * time.Second

	// With fixed windows, gRPC does not send the pings with which it estimates the
	// bandwidth of a network. A local socket does not need them.
	streamWindow = 1 << 20
	connWindow   = 8 << 20
	// readBuffer is the size of one read from the socket, in bytes.
	readBuffer = 256 << 10
)

// Client talks to one daemon. Its methods are safe for concurrent use.
type Client struct {
	socket    string
	reconnect time.Duration
	// users are those whose daemon the client uses.
	users users
	// autostart starts a daemon if none runs; nil without WithAutostart.
	autostart func(context.Context) error

	sandboxes agboxv1.SandboxServiceClient
	agents    agboxv1.AgentServiceClient
	files     agboxv1.FileServiceClient
	pools     agboxv1.PoolServiceClient

	// opening is held, across I/O, by the goroutine that makes the connection. Other
	// goroutines wait for the same connection or for the end of their contexts. Close
	// also holds it.
	opening chan struct{}
	live    atomic.Pointer[connection]
	closed  atomic.Bool
	// answered is set by the first answer of a daemon. After that, only one that crashed is
	// started again: somebody may have stopped it on purpose.
	answered atomic.Bool
	outages  outages
}

// connection is the result of the first call.
type connection struct {
	grpc *grpc.ClientConn
	// first has the socket that was opened to look for the daemon. gRPC uses it as its
	// first transport, and dials later ones itself.
	first chan net.Conn
}

// Option is an option of New.
type Option func(*Client) error

// WithSocket sets the path of the daemon's Unix socket. The default follows
// AGBOX_HOME and the XDG variables.
func WithSocket(path string) Option {
	return func(c *Client) error { c.socket = path; return nil }
}

// WithAutostart makes the first call start a daemon if none is running, and each call and
// stream under which it crashes start it again. A call ends with the reason if that fails
// twice; a stream waits on, because somebody else may start one. It has no effect with a
// socket other than the default: a daemon derives its socket from the environment.
func WithAutostart(config DaemonConfig) Option {
	return func(c *Client) error {
		c.autostart = func(ctx context.Context) error {
			_, err := StartDaemon(ctx, config)
			return err
		}
		return nil
	}
}

// WithDaemonUser also accepts a daemon of the user with this id. Without it, the client
// sends nothing to a daemon of other users than root and the one of this process. A program
// of root needs it for the daemon of somebody whom it trusts.
func WithDaemonUser(uid uint32) Option {
	return func(c *Client) error { c.users = append(c.users, uid); return nil }
}

// WithReconnect sets how long the client waits for a daemon that went away. The default
// is DefaultReconnect. 0 means not at all.
func WithReconnect(d time.Duration) Option {
	return func(c *Client) error { c.reconnect = max(d, 0); return nil }
}

// WithOutages sets a function that is told when the daemon is gone for some tenths of a
// second, when it cannot be started, and when it is back. tell is called by one goroutine
// at a time, in order. Calls and streams wait for it.
func WithOutages(tell func(Outage)) Option {
	return func(c *Client) error { c.outages.tell = tell; return nil }
}

// New makes a client. It does not connect, but Close must be called.
func New(opts ...Option) (*Client, error) {
	c := &Client{reconnect: DefaultReconnect, opening: make(chan struct{}, 1), users: ownUsers()}
	c.sandboxes, c.agents, c.files = agboxv1.NewSandboxServiceClient(calling{c}), agboxv1.NewAgentServiceClient(calling{c}), agboxv1.NewFileServiceClient(calling{c})
	c.pools = agboxv1.NewPoolServiceClient(calling{c})
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return nil, err
		}
	}
	install, err := paths.FromEnv()
	switch {
	case c.socket == "" && err != nil:
		return nil, &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The daemon's socket cannot be found: %v.", err)}
	case c.socket == "":
		c.socket = install.Socket()
	case err != nil || c.socket != install.Socket():
		c.autostart = nil
	}
	if problem := paths.SocketProblem(c.socket); problem != "" {
		return nil, &Error{Code: codes.InvalidArgument, Message: problem}
	}
	return c, nil
}

// Socket is the path of the daemon's Unix socket.
func (c *Client) Socket() string { return c.socket }

// Connect connects, and starts the daemon if WithAutostart was given. The first call of
// any other method does the same.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.open(ctx)
	return err
}

// Close ends the connection, and the streams and calls on it.
func (c *Client) Close() error {
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	c.closed.Store(true)
	live := c.live.Swap(nil)
	if live == nil {
		return nil
	}
	err := live.grpc.Close()
	select {
	case unused := <-live.first:
		return unused.Close()
	default:
		return err
	}
}

// open returns the connection to the daemon, and makes it if there is none.
func (c *Client) open(ctx context.Context) (*connection, error) {
	if live := c.live.Load(); live != nil {
		return live, nil
	}
	select {
	case c.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, ended(ctx.Err())
	}
	defer func() { <-c.opening }()
	if live := c.live.Load(); live != nil {
		return live, nil
	}
	if c.closed.Load() {
		return nil, &Error{Code: codes.FailedPrecondition, Message: "The client is closed."}
	}
	conn, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	live, err := c.wrap(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.live.Store(live)
	return live, nil
}

// find connects to the daemon. With WithAutostart it starts one if there is none.
func (c *Client) find(ctx context.Context) (net.Conn, error) {
	conn, err := dialSocket(ctx, c.socket, c.users)
	if err == nil {
		return conn, nil
	}
	if c.autostart == nil || !isDown(err) {
		return nil, dialError(ctx, c.socket, err)
	}
	if err := c.autostart(ctx); err != nil {
		return nil, err
	}
	conn, err = dialSocket(ctx, c.socket, c.users)
	if err != nil {
		return nil, dialError(ctx, c.socket, err)
	}
	return conn, nil
}

// wrap makes a gRPC connection from a connected socket.
func (c *Client) wrap(conn net.Conn) (*connection, error) {
	live := &connection{first: make(chan net.Conn, 1)}
	live.first <- conn
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		select {
		case conn := <-live.first:
			return conn, nil
		default:
		}
		if !c.answered.Load() {
			// The peer went away before its first answer, for example because it was
			// being killed. For this client it was not a daemon yet.
			return c.find(ctx)
		}
		return dialSocket(ctx, c.socket, c.users)
	}
	var err error
	live.grpc, err = grpc.NewClient("passthrough:///agboxd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialer),
		grpc.WithDisableServiceConfig(),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(readBuffer),
		experimental.WithBufferPool(caller.Buffers),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(caller.MaxAnswer), grpc.ForceCodecV2(caller.Codec)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.1, MaxDelay: longestPause},
			MinConnectTimeout: dialTimeout,
		}),
	)
	if err != nil {
		return nil, &Error{Code: codes.Internal, Message: fmt.Sprintf("The connection to agboxd cannot be made: %v.", err)}
	}
	return live, nil
}

// decode turns an error of gRPC into an *Error. It never passes on the text of the
// transport, which describes internals of gRPC.
func (c *Client) decode(ctx context.Context, err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	st := innerStatus(err)
	var told *Error
	var problems []*agboxv1.SpecProblem
	for _, detail := range st.Proto().GetDetails() { // st.Details knows only what is in the global registry
		info, spec := new(errdetails.ErrorInfo), new(agboxv1.ResolveSpecResponse)
		switch {
		case detail.UnmarshalTo(info) == nil:
			if info.GetDomain() == fault.Domain && told == nil {
				told = &Error{Code: st.Code(), Reason: info.GetReason(), Message: st.Message(), Metadata: info.GetMetadata()}
			}
		case detail.UnmarshalTo(spec) == nil:
			problems = spec.GetProblems()
		}
	}
	// Without a reason it is the status of a call that has ended, as the cases below say it.
	if told != nil && told.Reason != agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED.String() {
		c.answered.Store(true) // a refusal is an answer too
		told.Problems = problems
		return told
	}
	switch {
	case ctx.Err() != nil:
		return ended(ctx.Err())
	case st.Code() == codes.DeadlineExceeded:
		// The daemon's timer for our deadline fired shortly before ours.
		return ended(context.DeadlineExceeded)
	case st.Code() == codes.Unimplemented:
		return &Error{Code: st.Code(), Message: "This agboxd does not know the call. It is older than this program: restart it with `agbox daemon stop` and `agbox daemon start`."}
	case st.Code() == codes.Internal && strings.Contains(st.Message(), "invalid UTF-8"):
		// gRPC refuses to send the request. The daemon's answers are always UTF-8.
		return &Error{Code: codes.InvalidArgument, Reason: agboxv1.ErrorReason_INVALID_REQUEST.String(),
			Message: "The request contains bytes that are not UTF-8 and cannot be sent. Write names, arguments and values in UTF-8, or let a shell in the sandbox produce the bytes, for example with printf."}
	case lostCode(st.Code()):
		return &Error{
			Code:    codes.Unavailable,
			Message: fmt.Sprintf("The connection to agboxd at %s was lost before it answered. Check `agbox daemon status` and try again.", c.socket),
			cause:   ErrDaemonUnreachable,
			lost:    true,
		}
	}
	return &Error{Code: st.Code(), Message: fmt.Sprintf("agboxd failed with an unexpected error (%s). Look at its log.", st.Message())}
}

// repetition is an option of a unary call: whether it may be repeated if its result is unknown. Without
// it, a call is repeated only if it was certainly not executed.
type repetition struct {
	grpc.EmptyCallOption
	harmless bool
}

// idempotent calls may reach the daemon twice.
var idempotent = repetition{harmless: true}

// calling is the connection of the generated clients. It makes the connection to the daemon if there is
// none, and tells the daemon that the call is of a client of ours: others are clients of the published
// contract. It repeats a unary call if the daemon goes away.
type calling struct{ client *Client }

// Invoke makes a unary call. Its errors are of type *Error.
func (c calling) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	return c.client.repeated(ctx, c.client.newPatience(), func() (again bool, err error) {
		live, err := c.client.open(ctx)
		if err != nil {
			return false, err
		}
		var to peer.Peer
		err = live.grpc.Invoke(identify(ctx), method, in, out, append(opts, grpc.Peer(&to))...)
		// gRPC sets the peer only if the call reached a connection.
		return slices.Contains(opts, grpc.CallOption(idempotent)) || to.Addr == nil, err
	})
}

// NewStream opens a stream once. Its errors, and those of the stream, are for decode.
func (c calling) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	live, err := c.client.open(ctx)
	if err != nil {
		return nil, err
	}
	return live.grpc.NewStream(identify(ctx), desc, method, opts...)
}

func identify(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, caller.Header, caller.Version)
}

// repeated calls once until it succeeds. It repeats the call while the daemon is away if once
// returns again, but not if the first connection cannot be made. once resets wait after progress.
func (c *Client) repeated(ctx context.Context, wait *patience, once func() (again bool, err error)) error {
	for {
		if err := c.Connect(ctx); err != nil {
			return err
		}
		again, err := once()
		if err == nil {
			c.answered.Store(true)
			wait.reached()
			return nil
		}
		e := c.decode(ctx, err)
		if !again && !e.stops() {
			return e
		}
		if err := wait.again(ctx, e); err != nil {
			return err
		}
	}
}

func (c *Client) newPatience() *patience {
	return &patience{bound: c.reconnect, socket: c.socket, restart: c.autostart, outages: &c.outages}
}

// newFollower is newPatience for a stream that follows something.
func (c *Client) newFollower() *patience {
	p := c.newPatience()
	p.follows = true
	return p
}
