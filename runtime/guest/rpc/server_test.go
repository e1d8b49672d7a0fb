package rpc_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service has a method for each way in which a call can go.
type service struct {
	// entered gets the context of each call of cancel.
	entered chan context.Context
}

func (service) hello(_ context.Context, req *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: req.GetProtocol(), BootId: strings.Repeat("b", len(req.GetDaemonVersion()))}, nil
}

func (service) signal(_ context.Context, req *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	switch req.GetExecId() {
	case "panic":
		panic("on purpose")
	case "wrapped":
		return nil, fmt.Errorf("wrapped: %w", rpc.Errorf(rpc.ResourceExhausted, "%d are too many", 7))
	case "plain":
		return nil, errors.New("no code: \xff")
	}
	return &guestv1.SignalResponse{}, nil // an empty message
}

func (s service) cancel(ctx context.Context, _ *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	s.entered <- ctx
	<-ctx.Done()
	return nil, ctx.Err()
}

// watch sends as many records as ids were asked for, and fails if there is none.
func (service) watch(_ context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	for _, id := range req.GetExecIds() {
		if err := send(&guestv1.WatchResponse{Exec: &guestv1.ExecRecord{ExecId: id}}); err != nil {
			return err
		}
	}
	if len(req.GetExecIds()) == 0 {
		return rpc.Errorf(rpc.InvalidArgument, "nothing to watch")
	}
	return nil
}

func (s service) methods() rpc.Methods {
	return rpc.Methods{
		"guest.v1.Supervisor/Hello":  rpc.Unary(s.hello),
		"guest.v1.Supervisor/Signal": rpc.Unary(s.signal),
		"guest.v1.Supervisor/Cancel": rpc.Unary(s.cancel),
		"guest.v1.Supervisor/Watch":  rpc.Stream(s.watch),
	}
}

// served returns the caller's end of a served connection, and the server's.
func served(t *testing.T, s service) (net.Conn, *rpc.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	var serving sync.WaitGroup
	closed := 0
	c := rpc.NewConn(ours, func() { closed++ })
	serving.Go(func() { c.Serve(context.WithoutCancel(t.Context()), bufio.NewReader(ours), s.methods()) })
	t.Cleanup(func() {
		_ = theirs.Close()
		serving.Wait()
		if closed != 1 {
			t.Errorf("it was closed %d times", closed)
		}
	})
	return theirs, c
}

// dial returns a client of a served connection.
func dial(t *testing.T, s service) *rpc.Client {
	t.Helper()
	conn, _ := served(t, s)
	client := rpc.NewClient(conn)
	t.Cleanup(client.Close)
	return client
}

func TestAClientGetsReplies(t *testing.T) {
	client := dial(t, service{})
	var calls sync.WaitGroup
	for i := range 64 {
		calls.Go(func() {
			long := strings.Repeat("x", i*i) // in and beyond the buffers
			reply, err := hello(t.Context(), client, &guestv1.HelloRequest{Protocol: uint32(i), DaemonVersion: long})
			if err != nil || reply.GetProtocol() != uint32(i) || len(reply.GetBootId()) != len(long) {
				t.Errorf("call %d: %v, %v", i, reply, err)
			}
		})
	}
	calls.Wait()
	if reply, err := signal(t.Context(), client, ""); err != nil || reply.GetRunning() {
		t.Errorf("an empty reply: %v, %v", reply, err)
	}
}

// The library of ttrpc reads these bytes: an older daemon may have it.
func TestRepliesAreTheBytesOfTheLibrary(t *testing.T) {
	conn, _ := served(t, service{})
	for i, tt := range []struct{ method, payload, want string }{
		{"Hello", "\b\x03\x12\x02v1", "\x00\x00\x00\b\x00\x00\x00\x01\x02\x00\x12\x06\b\x03\x1a\x02bb"},
		{"Signal", "\n\x05plain", "\x00\x00\x00\x12\x00\x00\x00\x03\x02\x00\n\x10\b\x02\x12\fno code: \xef\xbf\xbd"},
		{"Signal", "\n\x07wrapped", "\x00\x00\x00\x14\x00\x00\x00\x05\x02\x00\n\x12\b\b\x12\x0e" + "7 are too many"},
		{"Watch", "\n\x01e", "\x00\x00\x00\x05\x00\x00\x00\x07\x03\x00\n\x03\n\x01e\x00\x00\x00\x00\x00\x00\x00\x07\x03\x05"},
	} {
		req := "\n\x13guest.v1.Supervisor\x12" + string(rune(len(tt.method))) + tt.method + "\x1a" + string(rune(len(tt.payload))) + tt.payload
		if _, err := conn.Write(frame(rpc.Header{StreamID: uint32(2*i + 1), Type: rpc.Request}, req)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(tt.want))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != tt.want {
			t.Errorf("%s %q is answered by %q, %v", tt.method, tt.payload, got, err)
		}
	}
	for code, of := range map[rpc.Code]codes.Code{
		rpc.Canceled: codes.Canceled, rpc.Unknown: codes.Unknown, rpc.InvalidArgument: codes.InvalidArgument,
		rpc.DeadlineExceeded: codes.DeadlineExceeded, rpc.ResourceExhausted: codes.ResourceExhausted, rpc.Aborted: codes.Aborted,
		rpc.Unimplemented: codes.Unimplemented, rpc.Internal: codes.Internal, rpc.Unavailable: codes.Unavailable,
	} {
		if uint32(code) != uint32(of) {
			t.Errorf("%s has the number %d", of, code)
		}
	}
}

func signal(ctx context.Context, c *rpc.Client, execID string) (*guestv1.SignalResponse, error) {
	return rpc.Call[guestv1.SignalResponse](ctx, c, "guest.v1.Supervisor/Signal", &guestv1.SignalRequest{ExecId: execID})
}

// codeOf returns the code of an error of a call; 0 if it has none.
func codeOf(err error) rpc.Code {
	if e, ok := errors.AsType[*rpc.Error](err); ok {
		return e.Code
	}
	return 0
}

func TestAClientGetsErrors(t *testing.T) {
	client := dial(t, service{})
	for id, want := range map[string]rpc.Error{
		"panic":   {Code: rpc.Internal, Message: "the supervisor failed in this call: on purpose"},
		"wrapped": {Code: rpc.ResourceExhausted, Message: "7 are too many"},
		"plain":   {Code: rpc.Unknown, Message: "no code: \uFFFD"},
	} {
		_, err := signal(t.Context(), client, id)
		if got, ok := errors.AsType[*rpc.Error](err); !ok || *got != want {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, method := range []string{"guest.v1.Supervisor/Release", "guest.v1.Files/Stat", "", "/"} {
		if _, err := rpc.Call[guestv1.ReleaseResponse](t.Context(), client, method, &guestv1.ReleaseRequest{}); codeOf(err) != rpc.Unimplemented {
			t.Errorf("the unknown method %q: %v", method, err)
		}
	}
}

func TestAClientGetsStreams(t *testing.T) {
	client := dial(t, service{})
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint("exec", i))
	}
	stream, err := client.Stream(t.Context(), "guest.v1.Supervisor/Watch", &guestv1.WatchRequest{ExecIds: want})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range want {
		var got guestv1.WatchResponse
		if err := stream.Recv(&got); err != nil || got.GetExec().GetExecId() != id {
			t.Fatalf("got %v, %v; want %s", &got, err, id)
		}
	}
	for range 2 {
		if err := stream.Recv(&guestv1.WatchResponse{}); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
	failing, err := client.Stream(t.Context(), "guest.v1.Supervisor/Watch", &guestv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := failing.Recv(&guestv1.WatchResponse{}); codeOf(err) != rpc.InvalidArgument {
		t.Errorf("a stream that fails: %v", err)
	}
}

func TestACallEndsWithItsDeadlineAndItsConnection(t *testing.T) {
	s := service{entered: make(chan context.Context)}
	conn, _ := served(t, s)
	frame := func(stream byte, timeout time.Duration) {
		raw, err := (&guestv1.CallRequest{Service: "guest.v1.Supervisor", Method: "Cancel", TimeoutNano: int64(timeout)}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, rpc.HeaderLen, rpc.HeaderLen+len(raw))
		rpc.PutHeader(buf, rpc.Header{Length: uint32(len(raw)), StreamID: uint32(stream), Type: rpc.Request})
		if _, err := conn.Write(append(buf, raw...)); err != nil {
			t.Fatal(err)
		}
	}
	frame(1, time.Nanosecond)
	if _, limited := (<-s.entered).Deadline(); !limited {
		t.Error("the call has no deadline")
	}
	head := make([]byte, rpc.HeaderLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	raw := make([]byte, rpc.ParseHeader(head).Length)
	if _, err := io.ReadFull(conn, raw); err != nil {
		t.Fatal(err)
	}
	var reply guestv1.CallResponse
	if err := reply.UnmarshalVT(raw); err != nil || reply.GetStatus().GetCode() != int32(rpc.DeadlineExceeded) {
		t.Errorf("after its deadline: %v, %v", &reply, err)
	}
	frame(3, 0)
	running := <-s.entered
	if _, limited := running.Deadline(); limited {
		t.Error("a call without a limit has a deadline")
	}
	_ = conn.Close()
	<-running.Done()
}

func TestACallerThatBreaksTheProtocolLosesItsConnection(t *testing.T) {
	request := func(h rpc.Header, content ...byte) []byte {
		buf := make([]byte, rpc.HeaderLen)
		rpc.PutHeader(buf, h)
		return append(buf, content...)
	}
	known := request(rpc.Header{StreamID: 5, Type: rpc.Request})
	for name, sent := range map[string][]byte{
		"a reply":           request(rpc.Header{StreamID: 1, Type: rpc.Response}),
		"an even stream":    request(rpc.Header{StreamID: 2, Type: rpc.Request}),
		"a stream again":    append(known, known...),
		"an older stream":   append(known, request(rpc.Header{StreamID: 3, Type: rpc.Request})...),
		"a frame of 1 GiB":  request(rpc.Header{StreamID: 1, Type: rpc.Request, Length: 1 << 30}),
		"half of a message": request(rpc.Header{StreamID: 1, Type: rpc.Request, Length: 3}, 1, 2)[:11],
	} {
		t.Run(name, func(t *testing.T) {
			conn, _ := served(t, service{})
			var writing sync.WaitGroup
			writing.Go(func() {
				_, _ = conn.Write(sent)
				if name == "half of a message" {
					_ = conn.Close()
				}
			})
			_, _ = io.Copy(io.Discard, conn) // ends when the server has closed it
			writing.Wait()
		})
	}
}

func TestACallThatCannotBeReadIsRefused(t *testing.T) {
	conn, _ := served(t, service{})
	buf := make([]byte, rpc.HeaderLen)
	rpc.PutHeader(buf, rpc.Header{StreamID: 1, Type: rpc.Request, Length: 2})
	go func() { _, _ = conn.Write(append(buf, 0x0a, 0x7f)) }() // a text of 127 bytes that is not there
	head := make([]byte, rpc.HeaderLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	h := rpc.ParseHeader(head)
	raw := make([]byte, h.Length)
	if _, err := io.ReadFull(conn, raw); err != nil {
		t.Fatal(err)
	}
	var reply guestv1.CallResponse
	if err := reply.UnmarshalVT(raw); err != nil || reply.GetStatus().GetCode() != int32(rpc.InvalidArgument) || h.StreamID != 1 {
		t.Errorf("the reply is %+v %v, %v", h, &reply, err)
	}
}

func TestAConnectionThatLeavesAnswersItsCalls(t *testing.T) {
	s := service{entered: make(chan context.Context)}
	conn, c := served(t, s)
	client := rpc.NewClient(conn)
	t.Cleanup(client.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop, abandon := context.WithCancel(ctx)
	answered := make(chan error, 1)
	go func() {
		_, err := rpc.Call[guestv1.CancelResponse](stop, client, "guest.v1.Supervisor/Cancel", &guestv1.CancelRequest{})
		answered <- err
	}()
	<-s.entered
	c.CloseWhenIdle()
	// The connection still serves: a call is running.
	if _, err := hello(ctx, client, &guestv1.HelloRequest{}); err != nil {
		t.Errorf("a call beside it: %v", err)
	}
	abandon()
	if err := <-answered; err == nil {
		t.Error("a call that was given up has a reply")
	}
	c.Close()
	if _, err := hello(ctx, client, &guestv1.HelloRequest{}); err == nil {
		t.Error("it answers after it was closed")
	}
}

func TestTooManyCallsAtOnceEndTheConnection(t *testing.T) {
	s := service{entered: make(chan context.Context)}
	conn, _ := served(t, s)
	raw, err := (&guestv1.CallRequest{Service: "guest.v1.Supervisor", Method: "Cancel"}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for i := range 2049 {
		head := make([]byte, rpc.HeaderLen)
		rpc.PutHeader(head, rpc.Header{StreamID: uint32(2*i + 1), Type: rpc.Request, Length: uint32(len(raw))})
		all.Write(append(head, raw...))
	}
	var work sync.WaitGroup
	work.Go(func() { _, _ = conn.Write(all.Bytes()) })
	work.Go(func() {
		for range 2048 {
			<-s.entered
		}
	})
	_, _ = io.Copy(io.Discard, conn) // ends when the server has closed it
	work.Wait()
}
