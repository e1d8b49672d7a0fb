package server

import (
	"context"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// preface is what an HTTP/2 client sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// settings is an empty SETTINGS frame.
var settings = frame(4, 0)

func frame(kind, flags byte, payload ...byte) []byte {
	return append([]byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}, payload...)
}

// patience bounds every wait. Only a broken test reaches it.
const patience = 30 * time.Second

// serving is a server that serves a socket.
type serving struct {
	*Server
	lis    *Listener
	socket string
	served chan error
}

func serve(t *testing.T) *serving {
	t.Helper()
	server := New(Options{Rules: bare(t).rules, Log: slog.New(slog.DiscardHandler), Upgrade: func(context.Context, string) (*agboxv1.UpgradeDaemonResponse, error) {
		return &agboxv1.UpgradeDaemonResponse{Pid: 7}, nil
	}})
	s := &serving{Server: server, socket: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
	inner, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s.lis = NewListener(inner, slog.New(slog.DiscardHandler))
	go func() { s.served <- s.Serve(s.lis) }() // ends with Stop
	return s
}

// dial returns a client whose first call has been answered.
func (s *serving) dial(t *testing.T, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+s.socket, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	call(t, conn)
	return conn
}

// call makes a unary call.
func call(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := agboxv1.NewSandboxServiceClient(conn).UpgradeDaemon(ctx, new(agboxv1.UpgradeDaemonRequest)); err != nil || out.GetPid() != 7 {
		t.Errorf("the call gives %v, %v", out, err)
	}
}

// stop stops the server as an upgrade does. It wants no call to be abandoned and no wait
// to reach its bound.
func (s *serving) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.Pause(s.lis)
	ended := s.Stop(ctx)
	if ctx.Err() != nil {
		t.Error("the stop waited until its bound")
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the calls never ended")
	}
	if err := <-s.served; err != nil {
		t.Error(err)
	}
}

// gated holds back what its client sends from a call on while gate is locked, as if the client
// got no processor then. held is called when it has the call.
type gated struct {
	net.Conn
	gate *sync.Mutex
	held func()
}

func (g *gated) Write(p []byte) (int, error) {
	if !hasCall(p) {
		return g.Conn.Write(p)
	}
	if !g.gate.TryLock() {
		g.held()
		g.gate.Lock()
	}
	defer g.gate.Unlock()
	return g.Conn.Write(p)
}

// hasCall reports whether the frames of HTTP/2 in p have one of the type HEADERS, which begins
// a call. A client also sends frames on its own account, such as pings.
func hasCall(p []byte) bool {
	const head, headers = 9, 1
	for len(p) >= head {
		if p[3] == headers {
			return true
		}
		length := int(p[0])<<16 | int(p[1])<<8 | int(p[2])
		p = p[min(len(p), head+length):]
	}
	return false
}

func TestACallOfASlowClientIsAnsweredByAServerThatStops(t *testing.T) {
	s := serve(t)
	var gate sync.Mutex
	held := make(chan struct{})
	heldOnce := sync.OnceFunc(func() { close(held) })
	// The client dials again when the server says that it ends.
	conn := s.dial(t, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket)
		if err != nil {
			return nil, err
		}
		return &gated{Conn: conn, gate: &gate, held: heldOnce}, nil
	}))
	gate.Lock()
	var calls sync.WaitGroup
	calls.Go(func() { call(t, conn) })
	<-held
	// Longer than the server waits for a peer that has acknowledged its end.
	time.AfterFunc(3*quietLooks*lookEvery, gate.Unlock)
	s.stop(t)
	calls.Wait()
}

// It also shows that goAwayPing is what this version of grpc sends.
func TestAStreamThatNeverEndsDoesNotHoldUpAStop(t *testing.T) {
	s := serve(t)
	conn := s.dial(t)
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.stop(t)
}

func TestASilentClientDoesNotHoldUpAStop(t *testing.T) {
	for name, sends := range map[string]string{"nothing": "", "half a greeting": preface} {
		s := serve(t)
		s.dial(t)
		silent, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		if _, err := silent.Write([]byte(sends)); err != nil {
			t.Fatal(name, err)
		}
		if _, err := silent.Read(make([]byte, 1)); err != nil { // the server's own greeting: it was accepted
			t.Fatal(name, err)
		}
		s.stop(t)
	}
}

func TestAClientThatGreetsLateIsServedByAServerThatPauses(t *testing.T) {
	s := serve(t)
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // the server's own greeting
		t.Fatal(err)
	}
	time.AfterFunc(greetLooks*lookEvery/4, func() {
		_, _ = conn.Write(slices.Concat([]byte(preface), settings))
	})
	s.Pause(s.lis)
	if open := s.lis.peersThat(func(c *peerConn) bool { return c.greeted.Load() }); len(open) != 1 {
		t.Errorf("%d connections are open", len(open))
	}
	_ = conn.Close()
	s.Stop(t.Context())
}

func TestAStoppedProcessIsNotAwaited(t *testing.T) {
	s := serve(t)
	s.dial(t)
	peers := s.lis.peersThat(func(*peerConn) bool { return true })
	if len(peers) != 1 || !s.lis.mayCall() {
		t.Fatalf("%d peers, may call: %t", len(peers), s.lis.mayCall())
	}
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	peers[0].pid = child.Process.Pid
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(child.Process.Pid, nil, unix.WUNTRACED, nil); err != nil { // until it has stopped
		t.Fatal(err)
	}
	if s.lis.mayCall() {
		t.Error("a stopped process may call")
	}
	s.stop(t)
}

func TestFramesAreRecognizedInPiecesOfAnySize(t *testing.T) {
	other := goAwayPing
	other[7]++
	before := slices.Concat([]byte(preface), frame(4, 0, make([]byte, 6)...), frame(0, 0, make([]byte, 700)...),
		frame(pingFrame, ackFlag, other[:]...), frame(pingFrame, 0, goAwayPing[:]...), frame(7, 1, goAwayPing[:]...), frame(pingFrame, ackFlag, 1))
	all := append(slices.Clone(before), frame(pingFrame, ackFlag, goAwayPing[:]...)...)
	greeting := len(preface) + frameHeaderLength + 6
	for size := 1; size <= len(all); size++ {
		f := newFrames()
		for at := 0; at < len(all); at += size {
			end := min(at+size, len(all))
			if acknowledged := f.read(all[at:end]); acknowledged != (end == len(all)) {
				t.Fatalf("in pieces of %d bytes, acknowledged is %t after %d of %d bytes", size, acknowledged, end, len(all))
			}
			if f.greeted() != (end >= greeting) {
				t.Fatalf("in pieces of %d bytes, greeted is %t after %d bytes", size, f.greeted(), end)
			}
		}
	}
}
