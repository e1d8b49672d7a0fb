package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// holding is a scripted daemon that does not answer some methods.
type holding struct {
	*scripted
	methods []string
	// asked has a value for each call of such a method.
	asked chan string
	// release lets such calls continue.
	release chan struct{}
	// refusal is what such calls get instead, if it is set.
	refusal error
}

// serveHolding serves a sandbox "demo" and does not answer some methods until release.
func serveHolding(t *testing.T, methods ...string) (*holding, string) {
	t.Helper()
	h := &holding{methods: methods, asked: make(chan string, 8), release: make(chan struct{})}
	h.scripted = &scripted{rest: map[string]func(){}, changed: make(chan struct{})}
	h.boxes = append(h.boxes, &agboxv1.SandboxHandle{SandboxId: "demo", State: agboxv1.SandboxState_SANDBOX_STATE_READY})
	socket := filepath.Join(shortDir(t), "d.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := h.hold(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return h.gate(ctx, in, info, next)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := h.hold(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return next(srv, stream)
		}))
	agboxv1.RegisterSandboxServiceServer(server, h.scripted)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		served.Wait()
	})
	return h, socket
}

func (h *holding) hold(ctx context.Context, fullMethod string) error {
	if !slices.Contains(h.methods, path.Base(fullMethod)) {
		return nil
	}
	if h.refusal != nil {
		return h.refusal
	}
	h.asked <- path.Base(fullMethod)
	select {
	case <-h.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setGrace changes answerGrace for a test.
func setGrace(t *testing.T, to time.Duration) {
	old := answerGrace
	answerGrace = to
	t.Cleanup(func() { answerGrace = old })
}

// onceAsked sends signals to a command line once the daemon has received a call that it
// does not answer.
func (c *cli) onceAsked(h *holding, signals ...os.Signal) *sync.WaitGroup {
	var sent sync.WaitGroup
	sent.Go(func() {
		<-h.asked
		for _, sig := range signals {
			c.signals <- sig
		}
	})
	return &sent
}

func TestASignalEndsAgboxThoughTheDaemonDoesNotAnswer(t *testing.T) {
	setGrace(t, time.Millisecond)
	for line, method := range map[string]string{
		"exec demo wait":               "RunExec",
		"exec -d demo wait":            "CreateExec",
		"exec -i demo wait":            "AttachExec",
		"exec -t demo wait":            "AttachExec",
		"create --image good":          "CreateSandbox",
		"create --no-wait --image any": "CreateSandbox",
		"run good wait":                "CreateSandbox",
		"run --rm good wait":           "CreateSandbox",
		"ls":                           "ListSandboxes",
	} {
		t.Run(line, func(t *testing.T) {
			h, socket := serveHolding(t, method)
			c := newCLI(t, socket)
			defer c.onceAsked(h, syscall.SIGTERM).Wait()
			code := c.exec(t.Context(), strings.Fields(line)...)
			unsure := strings.Contains(c.errs.String(), "It is unknown whether")
			if code != 143 || c.out.String() != "" || unsure != (line != "ls") {
				t.Errorf("code %d, stdout %q, stderr %q", code, c.out.String(), c.errs.String())
			}
		})
	}
}

// The daemon's timer for the deadline of a call may fire before that of the caller.
func TestARemovalIsNotDoneThoughTheDaemonSaidFirstThatTheTimeIsOver(t *testing.T) {
	h, socket := serveHolding(t, "GetSandbox")
	h.boxes[0].State = agboxv1.SandboxState_SANDBOX_STATE_DELETING
	h.refusal = status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	c := newCLI(t, socket)
	if code := c.exec(t.Context(), "image", "rm", "nosuch"); code != 3 || !strings.Contains(c.errs.String(), "Not removed yet: demo.") {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
}

func TestASandboxGoesThoughASignalCameBeforeItsCommandWasAccepted(t *testing.T) {
	setGrace(t, time.Millisecond)
	h, socket := serveHolding(t, "RunExec")
	c := newCLI(t, socket)
	defer c.onceAsked(h, syscall.SIGTERM).Wait()
	if code := c.exec(t.Context(), "run", "--rm", "good", "wait"); code != 143 {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
	if state := h.boxes[1].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("the sandbox is %v", state)
	}
}

func TestASandboxThatCouldNotBeRemovedIsNamedWithTheReason(t *testing.T) {
	setGrace(t, time.Millisecond)
	h, socket := serveHolding(t, "RunExec", "DeleteSandbox")
	c := newCLI(t, socket)
	var sent sync.WaitGroup
	defer sent.Wait()
	sent.Go(func() {
		for range 2 {
			<-h.asked
			c.signals <- syscall.SIGTERM
		}
	})
	code := c.exec(t.Context(), "run", "--rm", "good", "wait")
	id := h.boxes[1].GetSandboxId()
	want := "Sandbox " + id + " could not be removed: The call was cancelled. Try again with `agbox rm -f " + id + "`."
	if code != 143 || !strings.Contains(c.errs.String(), want) {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
}

func TestTheSecondSignalDoesNotWaitForAnAnswer(t *testing.T) {
	setGrace(t, time.Hour)
	for line, method := range map[string]string{"exec demo wait": "RunExec", "exec -d demo wait": "CreateExec", "exec -i demo wait": "AttachExec"} {
		t.Run(line, func(t *testing.T) {
			h, socket := serveHolding(t, method)
			c := newCLI(t, socket)
			defer c.onceAsked(h, syscall.SIGINT, syscall.SIGTERM).Wait()
			if code := c.exec(t.Context(), strings.Fields(line)...); code != 143 {
				t.Errorf("code %d, stderr %q", code, c.errs.String())
			}
		})
	}
}

func TestTheFirstSignalLeavesTheSecondToTheSystem(t *testing.T) {
	setGrace(t, time.Millisecond)
	for line, method := range map[string]string{"create --image slow": "CreateSandbox", "run slow wait": "CreateSandbox", "exec demo wait": "RunExec"} {
		t.Run(line, func(t *testing.T) {
			h, socket := serveHolding(t, method)
			c := newCLI(t, socket)
			var restored []os.Signal
			c.restore = func(kinds ...os.Signal) { restored = kinds }
			defer c.onceAsked(h, syscall.SIGTERM).Wait()
			c.exec(t.Context(), strings.Fields(line)...)
			if !slices.Contains(restored, os.Signal(syscall.SIGTERM)) || !slices.Contains(restored, os.Signal(syscall.SIGINT)) {
				t.Errorf("restored %v", restored)
			}
		})
	}
}

func TestAnAnswerThatComesRightAfterTheSignalCounts(t *testing.T) {
	setGrace(t, time.Hour)
	h, socket := serveHolding(t, "CreateSandbox")
	c := newCLI(t, socket)
	c.signals = make(chan os.Signal)
	var sent sync.WaitGroup
	defer sent.Wait()
	sent.Go(func() {
		<-h.asked
		c.signals <- syscall.SIGTERM
		close(h.release) // the signal was received
	})
	if code := c.exec(t.Context(), "create", "--image", "slow"); code != 143 || !strings.Contains(c.errs.String(), "was removed") {
		t.Errorf("code %d, stderr %q", code, c.errs.String())
	}
	if state := h.boxes[1].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("the sandbox is %v", state)
	}
}

func TestASignalThatTheDaemonDoesNotPassOnEndsAgbox(t *testing.T) {
	for name, c := range map[string]struct {
		grace, bound time.Duration
		signals      int
	}{
		"at the second signal": {0, time.Hour, 2},
		"after a while":        {time.Hour, time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			setGrace(t, c.grace)
			old := passBound
			passBound = c.bound
			defer func() { passBound = old }()
			h, socket := serveHolding(t, "SignalExec")
			cli := newCLI(t, socket)
			cli.out.wrote = func() { cli.signals <- syscall.SIGTERM }
			if c.signals == 2 {
				defer cli.onceAsked(h, syscall.SIGTERM).Wait()
			}
			code := cli.exec(t.Context(), "exec", "demo", "wait")
			if code != 143 || !strings.Contains(cli.errs.String(), "The command keeps running") {
				t.Errorf("code %d, stderr %q", code, cli.errs.String())
			}
			if state := h.execs[0].GetState(); state != agboxv1.ExecState_EXEC_STATE_RUNNING {
				t.Errorf("the command is %v", state)
			}
		})
	}
}

func TestADetachedCommandKeepsItsIdWhateverComes(t *testing.T) {
	t.Run("GetExec fails", func(t *testing.T) {
		h, socket := serveHolding(t, "GetExec")
		c := newCLI(t, socket)
		var failed sync.WaitGroup
		failed.Go(func() {
			<-h.asked
			h.mu.Lock()
			h.refuse = reject(codes.ResourceExhausted, agboxv1.ErrorReason_OVERLOADED, "Too much is going on.")
			h.mu.Unlock()
			close(h.release)
		})
		code := c.exec(t.Context(), "exec", "-d", "demo", "wait")
		failed.Wait()
		if code != codeExecAgbox || c.out.String() != h.execs[0].GetExecId()+"\n" || !strings.Contains(c.errs.String(), "Too much is going on.") {
			t.Errorf("code %d, stdout %q, stderr %q", code, c.out.String(), c.errs.String())
		}
	})
	t.Run("a signal comes", func(t *testing.T) {
		h, socket := serveHolding(t, "GetExec")
		c := newCLI(t, socket)
		defer c.onceAsked(h, syscall.SIGTERM).Wait()
		code := c.exec(t.Context(), "exec", "-d", "demo", "wait")
		if code != 143 || c.out.String() != h.execs[0].GetExecId()+"\n" || !strings.Contains(c.errs.String(), "The command keeps running") {
			t.Errorf("code %d, stdout %q, stderr %q", code, c.out.String(), c.errs.String())
		}
		if len(h.signals) > 0 {
			t.Errorf("the command got %v", h.signals)
		}
	})
}

func TestASignalEndsAgboxWhileItReadsASandboxFile(t *testing.T) {
	for _, line := range []string{"create -f", "run -f", "config validate"} {
		t.Run(line, func(t *testing.T) {
			_, socket := serveScripted(t)
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer read.Close()
			defer write.Close() // ends the reader
			c := newCLI(t, socket)
			c.signals <- syscall.SIGTERM
			args := append(strings.Fields(line), fmt.Sprintf("/dev/fd/%d", read.Fd()))
			if strings.HasPrefix(line, "run") {
				args = append(args, "--", "wait")
			}
			if code := c.exec(t.Context(), args...); code != 143 {
				t.Errorf("code %d, stderr %q", code, c.errs.String())
			}
		})
	}
}

func TestRestoredSignalsGoToTheSystemAgain(t *testing.T) {
	subscribe, restore := processSignals()
	got, end := subscribe(syscall.SIGWINCH, syscall.SIGUSR1) // the first is ignored by default
	defer end()
	for _, sig := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGUSR1} {
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	for len(got) < 2 {
		runtime.Gosched()
	}
	restore(syscall.SIGWINCH)
	if sig := <-got; sig != syscall.SIGUSR1 {
		t.Errorf("%v is still there", sig)
	}
	_, endSecond := subscribe(syscall.SIGWINCH)
	defer endSecond()
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	if sig := <-got; sig != syscall.SIGWINCH {
		t.Errorf("the new subscription got %v", sig)
	}
}

func TestOutlastingEndsLaterWithTheSameCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	longer, end := outlasting(ctx, time.Millisecond)
	defer end()
	if longer.Err() != nil {
		t.Error("it has ended at once")
	}
	cancel(interrupted(syscall.SIGTERM))
	<-longer.Done()
	var sig interrupted
	if !errors.As(context.Cause(longer), &sig) || syscall.Signal(sig) != syscall.SIGTERM {
		t.Errorf("it ended with %v", fmt.Sprint(context.Cause(longer)))
	}
}
