package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/agbox/agbox/daemon/guests/execs"
	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/logs/notify"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	guestrpc "github.com/agbox/agbox/runtime/guest/rpc"
)

// attachable answers calls about the exec "e" in the READY sandbox "a". The exec runs and
// has written something.
func attachable(t *testing.T) *execCalls {
	t.Helper()
	s, _ := attachableTo(t, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "e", Command: []string{"cat"}})
	return s
}

// attachableTo is attachable with the given exec, and returns the bench of its
// supervisor.
func attachableTo(t *testing.T, exec *agboxv1.CreateExecRequest) (*execCalls, *guesttest.Bench) {
	t.Helper()
	b := guesttest.New(t)
	if _, err := b.Ledger.AcceptExec(t.Context(), exec, "boot"); err != nil {
		t.Fatal(err)
	}
	notifier := notify.New()
	t.Cleanup(func() { _ = notifier.Close() })
	folder, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = folder.Close() })
	w, err := folder.Create("e", logs.WriterOptions{Owner: logs.KeepOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	w.Write(logs.Stdout, time.Now(), []byte("hello"))
	return &execCalls{
		paths: b.Install, ledger: b.Ledger, logs: notifier, life: newLifetime(),
		execs: execs.New(b.Links, b.Ledger, b.Install, time.Now, b.Log),
	}, b
}

// closedInput is a supervisor whose execs no longer accept input, and which does not know
// how much they received.
type closedInput struct{}

func (c closedInput) methods() guestrpc.Methods {
	return guestrpc.Methods{
		"guest.v1.Supervisor/Hello":      guestrpc.Unary(c.Hello),
		"guest.v1.Supervisor/Watch":      guestrpc.Stream(c.Watch),
		"guest.v1.Supervisor/WriteStdin": guestrpc.Unary(c.WriteStdin),
	}
}

func (closedInput) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: guestrpc.Protocol, SupervisorVersion: "test", BootId: "boot"}, nil
}

func (closedInput) Watch(ctx context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if err := send(&guestv1.WatchResponse{Watching: true}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (closedInput) WriteStdin(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	return new(guestv1.WriteStdinResponse), nil
}

// answers is the call of a client that sends its request and reads the first answer.
type answers struct {
	grpc.ServerStream
	ctx   context.Context
	open  *agboxv1.AttachOpen
	first chan *agboxv1.AttachExecResponse
}

func (s *answers) Context() context.Context { return s.ctx }

func (s *answers) Send(m *agboxv1.AttachExecResponse) error {
	select {
	case s.first <- m:
	default:
	}
	return nil
}

func (s *answers) Recv() (*agboxv1.AttachExecRequest, error) {
	if open := s.open; open != nil {
		s.open = nil
		return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: open}}, nil
	}
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// A client counts what it has written. That must not be compared with a count that nobody
// keeps any more.
func TestWhoAttachesToAClosedInputGetsNoRightToType(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *guesttest.Bench){
		"the command ends": func(_ *testing.T, b *guesttest.Bench) {
			b.Serve(closedInput{}.methods())
			b.Connect()
		},
		"the sandbox is being stopped and has no link": func(t *testing.T, b *guesttest.Bench) {
			if _, err := b.Ledger.RequestStop(t.Context(), "a", "asked for"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := attachableTo(t, &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "e", Command: []string{"cat"}, Stdin: true})
			prepare(t, b)
			ctx, leave := context.WithCancel(t.Context())
			stream := &answers{ctx: ctx, first: make(chan *agboxv1.AttachExecResponse, 1), open: &agboxv1.AttachOpen{
				ExecId: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "w", Typed: true,
			}}
			over := make(chan error, 1)
			go func() { over <- s.AttachExec(stream) }()
			select {
			case m := <-stream.first:
				if at := m.GetAttached(); at == nil || at.GetInput() || !at.GetInputClosed() || at.GetTypist() != "" {
					t.Errorf("the client is told %v", m)
				}
				leave()
				if err := <-over; !errors.Is(err, context.Canceled) {
					t.Errorf("the call ended: %v", err)
				}
			case err := <-over:
				t.Errorf("the call ended: %v", err)
				leave()
			}
			s.life.receivers.Wait()
			s.life.senders.Wait()
		})
	}
}

// stuckStream is the call of a client that sends its request, reads the answer, and then
// reads nothing until the call ends.
type stuckStream struct {
	grpc.ServerStream
	ctx  context.Context
	open *agboxv1.AttachOpen
	sent int
	over chan struct{}
}

func (s *stuckStream) Context() context.Context { return s.ctx }

func (s *stuckStream) Send(*agboxv1.AttachExecResponse) error {
	if s.sent++; s.sent > 1 {
		<-s.over
		return io.EOF
	}
	return nil
}

func (s *stuckStream) Recv() (*agboxv1.AttachExecRequest, error) {
	if open := s.open; open != nil {
		s.open = nil
		return &agboxv1.AttachExecRequest{Item: &agboxv1.AttachExecRequest_Open{Open: open}}, nil
	}
	<-s.over
	return nil, context.Canceled
}

// A message about its input is also waiting.
func TestATypistThatTakesNothingIsLeft(t *testing.T) {
	s := attachable(t)
	s.slowReader = time.Millisecond
	stream := &stuckStream{ctx: t.Context(), over: make(chan struct{}), open: &agboxv1.AttachOpen{
		ExecId: "e", Input: agboxv1.InputMode_INPUT_MODE_IF_FREE, Writer: "w",
	}}
	err := s.AttachExec(stream)
	if fault.ReasonOf(err) != agboxv1.ErrorReason_OVERLOADED {
		t.Errorf("%v, want OVERLOADED", err)
	}
	close(stream.over)
	s.life.receivers.Wait()
	s.life.senders.Wait()
}
