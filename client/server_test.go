package client

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/internal/fault"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("AGBOX_CLIENT_TEST_DAEMON"); role != "" {
		os.Exit(pretendDaemon(role))
	}
	goleak.VerifyTestMain(m)
}

// script is a daemon that answers as a test says. A nil function is an unknown method.
type script struct {
	agboxv1.UnimplementedSandboxServiceServer
	ping   func(context.Context) (*agboxv1.PingResponse, error)
	create func(context.Context, *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error)
	get    func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error)
	exec   func(*agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error)
	execOf func(*agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error)
	signal func(*agboxv1.SignalExecRequest) error
	list   func(*agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error)
	active func(*agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error)
	logs   func(*agboxv1.FollowExecLogsRequest, grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error
	events func(*agboxv1.SubscribeSandboxEventsRequest, grpc.ServerStreamingServer[agboxv1.SandboxEvent]) error
	watch  func(*agboxv1.WatchEventsRequest, grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error
	attach func(grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error

	// agents is the service of agents, which daemons had not always.
	agents agboxv1.AgentServiceServer

	upgrade func(*agboxv1.UpgradeDaemonRequest) (*agboxv1.UpgradeDaemonResponse, error)
}

func (s *script) Ping(ctx context.Context, _ *agboxv1.PingRequest) (*agboxv1.PingResponse, error) {
	if s.ping == nil {
		return nil, status.Error(codes.Unimplemented, "method Ping not implemented")
	}
	return s.ping(ctx)
}

func (s *script) CreateSandbox(ctx context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
	return s.create(ctx, in)
}

func (s *script) GetSandbox(_ context.Context, in *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
	return s.get(in)
}

func (s *script) CreateExec(_ context.Context, in *agboxv1.CreateExecRequest) (*agboxv1.CreateExecResponse, error) {
	return s.exec(in)
}

func (s *script) GetExec(_ context.Context, in *agboxv1.GetExecRequest) (*agboxv1.GetExecResponse, error) {
	return s.execOf(in)
}

// RunExec combines its parts.
func (s *script) RunExec(in *agboxv1.CreateExecRequest, out grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	created, err := s.exec(in)
	if err != nil {
		return err
	}
	if err := out.Send(&agboxv1.FollowExecLogsResponse{Item: &agboxv1.FollowExecLogsResponse_Created{Created: created}}); err != nil {
		return err
	}
	return s.logs(&agboxv1.FollowExecLogsRequest{ExecId: created.GetExecId(), Follow: true}, out)
}

func (s *script) SignalExec(_ context.Context, in *agboxv1.SignalExecRequest) (*agboxv1.AcceptedResponse, error) {
	return &agboxv1.AcceptedResponse{Accepted: true}, s.signal(in)
}

func (s *script) ListExecs(_ context.Context, in *agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
	return s.list(in)
}

func (s *script) ListActiveExecs(_ context.Context, in *agboxv1.ListActiveExecsRequest) (*agboxv1.ListActiveExecsResponse, error) {
	return s.active(in)
}

func (s *script) FollowExecLogs(in *agboxv1.FollowExecLogsRequest, out grpc.ServerStreamingServer[agboxv1.FollowExecLogsResponse]) error {
	return s.logs(in, out)
}

func (s *script) SubscribeSandboxEvents(in *agboxv1.SubscribeSandboxEventsRequest, out grpc.ServerStreamingServer[agboxv1.SandboxEvent]) error {
	return s.events(in, out)
}

func (s *script) WatchEvents(in *agboxv1.WatchEventsRequest, out grpc.ServerStreamingServer[agboxv1.WatchEventsResponse]) error {
	return s.watch(in, out)
}

func (s *script) AttachExec(stream grpc.BidiStreamingServer[agboxv1.AttachExecRequest, agboxv1.AttachExecResponse]) error {
	return s.attach(stream)
}

func (s *script) UpgradeDaemon(_ context.Context, in *agboxv1.UpgradeDaemonRequest) (*agboxv1.UpgradeDaemonResponse, error) {
	return s.upgrade(in)
}

// host serves a script on a Unix socket and can be killed and restarted.
type host struct {
	t      *testing.T
	socket string
	script *script
	server *grpc.Server
	served sync.WaitGroup
	cutter *cutter
}

func serve(t *testing.T, s *script) *host {
	t.Helper()
	h := &host{t: t, socket: filepath.Join(shortDir(t), "d.sock"), script: s}
	h.start()
	t.Cleanup(h.kill)
	return h
}

// shortDir returns a directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *host) start() {
	h.t.Helper()
	listener, err := net.Listen("unix", h.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.cutter = &cutter{Listener: listener}
	h.server = grpc.NewServer()
	agboxv1.RegisterSandboxServiceServer(h.server, h.script)
	if h.script.agents != nil {
		agboxv1.RegisterAgentServiceServer(h.server, h.script.agents)
	}
	server := h.server
	h.served.Go(func() { _ = server.Serve(h.cutter) })
}

// kill breaks all connections and stops listening, as SIGKILL of a daemon does.
func (h *host) kill() {
	h.server.Stop()
	h.served.Wait()
}

// cutter is a listener that can break the connections that it accepted.
type cutter struct {
	net.Listener
	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

// cut breaks all connections and continues to listen. A handler may call it.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

func (h *host) client(opts ...Option) *Client {
	h.t.Helper()
	c, err := New(append([]Option{WithSocket(h.socket)}, opts...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// reject makes an error as the daemon sends it.
func reject(code codes.Code, reason agboxv1.ErrorReason, message string) error {
	st, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{
		Reason: reason.String(), Domain: fault.Domain, Metadata: map[string]string{"sandbox_id": "box"},
	})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// record has the requests to a daemon, in order.
type record struct {
	mu    sync.Mutex // guards words
	words []string
}

// add returns the number of words.
func (r *record) add(word string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.words = append(r.words, word)
	return len(r.words)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.words, " ")
}
