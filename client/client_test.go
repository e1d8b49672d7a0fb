package client

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

func pong(context.Context) (*agboxv1.PingResponse, error) {
	return &agboxv1.PingResponse{Daemon: "agboxd", Version: "v-test"}, nil
}

func TestErrorsOfTheDaemonAreTyped(t *testing.T) {
	h := serve(t, &script{get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
		return nil, reject(codes.NotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "There is no sandbox box.")
	}})
	_, err := h.client().GetSandbox(t.Context(), "box")
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrNotFound) || errors.Is(err, ErrInvalid) {
		t.Fatalf("got %T %v", err, err)
	}
	if e.Reason != "SANDBOX_NOT_FOUND" || e.Metadata["sandbox_id"] != "box" || err.Error() != "There is no sandbox box." {
		t.Errorf("got reason %q, metadata %v, text %q", e.Reason, e.Metadata, err)
	}
	if status.Code(err) != codes.NotFound {
		t.Errorf("status.Code gives %v", status.Code(err))
	}
}

func TestTransportJargonNeverShows(t *testing.T) {
	h := serve(t, &script{})
	h.script.get = func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
		h.cutter.cut()
		return nil, errors.New("nobody hears this")
	}
	c := h.client(WithReconnect(0))
	for name, call := range map[string]func() error{
		"cut":           func() error { _, err := c.GetSandbox(t.Context(), "box"); return err },
		"unimplemented": func() error { _, err := c.Ping(t.Context()); return err },
	} {
		err := call()
		if err == nil || strings.Contains(err.Error(), "rpc") || strings.Contains(err.Error(), "desc") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnErrorWithinAnotherHasItsOwnWordsOnly(t *testing.T) {
	inner := reject(codes.FailedPrecondition, agboxv1.ErrorReason_WORKSPACE_HAS_NO_BASE, "No workspace was copied in.")
	e := new(Client).decode(t.Context(), errors.Join(inner, nil))
	if e.Error() != "No workspace was copied in." || e.Reason != "WORKSPACE_HAS_NO_BASE" {
		t.Errorf("got %q, reason %q", e, e.Reason)
	}
}

func TestBytesThatAreNotUTF8AreAnInvalidRequest(t *testing.T) {
	c := serve(t, &script{}).client()
	_, err := c.CreateExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "box", Command: []string{"caf\xe9"}})
	if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "grpc") || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("got %v", err)
	}
	for _, err := range c.RunLogs(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "box", Command: []string{"caf\xe9"}}) {
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("of a stream: got %v", err)
		}
	}
}

func TestWithoutADaemonTheFirstCallSaysHowToStartOne(t *testing.T) {
	c, err := New(WithSocket(filepath.Join(shortDir(t), "none.sock")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Ping(t.Context())
	if !errors.Is(err, ErrDaemonUnreachable) || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "agbox daemon start") {
		t.Errorf("got %v", err)
	}
}

func TestASocketPathThatIsTooLongIsRefusedAtOnce(t *testing.T) {
	_, err := New(WithSocket("/" + strings.Repeat("a", 107)))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestCallsSurviveARestartOfTheDaemon(t *testing.T) {
	h := serve(t, &script{ping: pong})
	c := h.client()
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.kill()
	var call sync.WaitGroup
	call.Go(func() {
		if _, err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
	h.start()
	call.Wait()
}

func TestADaemonThatStaysAwayIsGivenUp(t *testing.T) {
	h := serve(t, &script{ping: pong})
	c := h.client(WithReconnect(50 * time.Millisecond))
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.kill()
	_, err := c.Ping(t.Context())
	if !errors.Is(err, ErrDaemonUnreachable) || !strings.Contains(err.Error(), "did not come back") {
		t.Errorf("got %v", err)
	}
	h.start()
}

// A daemon that refused the first call, and was stopped on purpose after that, is not started
// by the second.
func TestADaemonThatHasRefusedACallHasAnswered(t *testing.T) {
	h := serve(t, &script{get: func(*agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
		return nil, reject(codes.NotFound, agboxv1.ErrorReason_SANDBOX_NOT_FOUND, "There is no sandbox box.")
	}})
	c := h.client(WithReconnect(50 * time.Millisecond))
	var starts atomic.Int32
	c.autostart = func(context.Context) error {
		starts.Add(1)
		return &Error{Code: codes.Unavailable, Message: "no daemon", cause: ErrDaemonNotRunning}
	}
	if _, err := c.GetSandbox(t.Context(), "box"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	h.kill()
	if _, err := c.GetSandbox(t.Context(), "box"); !errors.Is(err, ErrDaemonUnreachable) || starts.Load() > 0 {
		t.Errorf("got %v after %d starts of a daemon", err, starts.Load())
	}
	h.start()
}

func TestACreateWhoseAnswerWasLostMakesOneSandbox(t *testing.T) {
	var seen record
	h := serve(t, &script{})
	h.script.create = func(_ context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
		if seen.add(in.GetSandboxId()) == 1 {
			h.cutter.cut()
		}
		return &agboxv1.CreateSandboxResponse{Sandbox: &agboxv1.SandboxHandle{SandboxId: in.GetSandboxId()}}, nil
	}
	in := &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: "x"}}
	box, err := h.client().CreateSandbox(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if id := box.GetSandboxId(); id == "" || seen.String() != id+" "+id {
		t.Errorf("the daemon saw the ids %q, the caller %q", &seen, id)
	}
	if in.GetSandboxId() != "" {
		t.Error("the caller's request was changed")
	}
}

func TestASignalIsNotSentTwice(t *testing.T) {
	var sent atomic.Int32
	h := serve(t, &script{ping: pong})
	h.script.signal = func(*agboxv1.SignalExecRequest) error {
		sent.Add(1)
		h.cutter.cut()
		return nil
	}
	c := h.client()
	if err := c.SignalExec(t.Context(), "e", syscall.SIGINT); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if sent.Load() != 1 {
		t.Errorf("sent %d times", sent.Load())
	}
}

func TestASignalThatNeverLeftIsSentAgain(t *testing.T) {
	var sent atomic.Int32
	h := serve(t, &script{ping: pong, signal: func(*agboxv1.SignalExecRequest) error { sent.Add(1); return nil }})
	c := h.client()
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.kill()
	// Until gRPC notices the loss, the result of the call would be unknown. The
	// connection may even be usable for a moment before gRPC calls it ready.
	conn := c.live.Load().grpc
	for state := conn.GetState(); state == connectivity.Connecting || state == connectivity.Ready; state = conn.GetState() {
		conn.WaitForStateChange(t.Context(), state)
	}
	called, ended := context.WithCancel(t.Context())
	var call sync.WaitGroup
	call.Go(func() {
		defer ended()
		if err := c.SignalExec(t.Context(), "e", syscall.SIGINT); err != nil {
			t.Error(err)
		}
	})
	// The call has failed for the first time once a dial has failed.
	for state := conn.GetState(); state != connectivity.TransientFailure && called.Err() == nil; state = conn.GetState() {
		conn.WaitForStateChange(called, state)
	}
	h.start()
	call.Wait()
	if sent.Load() != 1 {
		t.Errorf("sent %d times", sent.Load())
	}
}

func TestAStoppingDaemonIsAskedAgainAndADeadEngineIsNot(t *testing.T) {
	var asked int
	h := serve(t, &script{ping: func(context.Context) (*agboxv1.PingResponse, error) {
		if asked++; asked == 1 {
			return nil, reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "agboxd is stopping.")
		}
		return nil, reject(codes.Unavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "Docker does not answer.")
	}})
	_, err := h.client().Ping(t.Context())
	if asked != 2 || err == nil || err.Error() != "Docker does not answer." {
		t.Errorf("asked %d times, got %v", asked, err)
	}
	if errors.Is(err, ErrDaemonUnreachable) {
		t.Error("a dead engine looks like a dead daemon")
	}
}

func TestAContextThatEndsEndsTheCall(t *testing.T) {
	h := serve(t, &script{ping: func(ctx context.Context) (*agboxv1.PingResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := h.client().Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The daemon's timer may fire before the client's, and a stopping daemon cancels its calls.
func TestAnEndedCallWithoutReasonIsNoAnswer(t *testing.T) {
	code, asked := codes.DeadlineExceeded, 0
	h := serve(t, &script{ping: func(context.Context) (*agboxv1.PingResponse, error) {
		if asked++; asked > 2 {
			return pong(t.Context())
		}
		return nil, reject(code, agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED, "The call has ended.")
	}})
	c := h.client()
	if _, err := c.Ping(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	code = codes.Canceled
	if _, err := c.Ping(t.Context()); err != nil || asked != 3 {
		t.Errorf("asked %d times, got %v", asked, err)
	}
}

func TestAClosedClientRefusesCalls(t *testing.T) {
	h := serve(t, &script{ping: pong})
	c := h.client()
	if err := c.Connect(t.Context()); err != nil { // opened, never used
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ping(t.Context()); err == nil {
		t.Error("a closed client still answers")
	}
}

func TestManyFirstCallsShareOneConnection(t *testing.T) {
	h := serve(t, &script{ping: pong})
	c := h.client()
	var calls sync.WaitGroup
	for range 512 {
		calls.Go(func() {
			if _, err := c.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	h.cutter.mu.Lock()
	defer h.cutter.mu.Unlock()
	if n := len(h.cutter.conns); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestPagesAreFetchedAsTheyAreRead(t *testing.T) {
	var pages []string
	h := serve(t, &script{list: func(in *agboxv1.ListExecsRequest) (*agboxv1.ListExecsResponse, error) {
		pages = append(pages, in.GetPageToken())
		out := &agboxv1.ListExecsResponse{Execs: []*agboxv1.ExecStatus{{ExecId: "e" + in.GetPageToken()}, {ExecId: "f"}}}
		if len(pages) < 3 {
			out.NextPageToken = strings.Repeat("x", len(pages))
		}
		return out, nil
	}})
	c := h.client()
	var got []string
	for e, err := range c.ListExecs(t.Context(), "box") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.GetExecId())
	}
	if want := "e f ex f exx f"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, err := range c.ListExecs(t.Context(), "box") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if len(pages) != 4 {
		t.Errorf("a reader that left early had %d pages fetched", len(pages)-3)
	}
}
