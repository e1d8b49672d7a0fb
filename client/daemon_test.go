package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// pretendDaemon is what the test binary does when StartDaemon starts it. It follows the
// contract between `agboxd run` and its caller.
func pretendDaemon(role string) int {
	install, err := paths.FromEnv()
	if err != nil || len(os.Args) != 2 || os.Args[1] != "run" {
		fmt.Fprintln(os.Stderr, "wrong start:", os.Args, err)
		return 1
	}
	starts, err := os.OpenFile(filepath.Join(install.Data, "starts"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = starts.WriteString("started\n")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if role == "broken" {
		fmt.Fprintln(os.Stderr, "level=ERROR msg=\"The database is truncated.\"")
		return 3
	}
	if role == "beaten" && first(install) {
		return exitRuns
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if role == "slow" {
		fmt.Println("on its way")
		<-stop
		return 0
	}
	if err := os.MkdirAll(install.Run, 0o700); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	lock, err := os.OpenFile(install.Lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "another agboxd runs:", err)
		return 1
	}
	_, _ = lock.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	_ = os.Remove(install.Socket())
	listener, err := net.Listen("unix", install.Socket())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pid := uint32(os.Getpid())
	if role == "impostor" {
		pid++
	}
	// A daemon that stops answers no call any more, also on connections that it has.
	var stopping atomic.Bool
	refuse := func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if stopping.Load() {
			return nil, errStopping
		}
		return next(ctx, in)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(refuse))
	agboxv1.RegisterSandboxServiceServer(server, &script{
		ping: func(context.Context) (*agboxv1.PingResponse, error) {
			return &agboxv1.PingResponse{Daemon: "agboxd", Pid: pid}, nil
		},
		create: func(_ context.Context, in *agboxv1.CreateSandboxRequest) (*agboxv1.CreateSandboxResponse, error) {
			if role == "crashing create" && first(install) {
				crash()
			}
			return &agboxv1.CreateSandboxResponse{Sandbox: &agboxv1.SandboxHandle{SandboxId: in.GetSandboxId(), State: pending}}, nil
		},
		get: func(in *agboxv1.GetSandboxRequest) (*agboxv1.GetSandboxResponse, error) {
			if role == "crashing get" && first(install) {
				crash()
			}
			state := pending
			if _, err := os.Stat(mark(install)); err == nil {
				state = ready // the previous life has crashed or stopped
			}
			return &agboxv1.GetSandboxResponse{Sandbox: &agboxv1.SandboxHandle{SandboxId: in.GetSandboxId(), State: state}}, nil
		},
		events: func(_ *agboxv1.SubscribeSandboxEventsRequest, s eventStream) error {
			if stopping.Load() {
				return errStopping
			}
			if !first(install) {
				return s.Send(event(1, ready))
			}
			if role == "stopping" {
				stopping.Store(true)
				stop <- syscall.SIGTERM
				for { // until it listens no more
					if _, err := os.Lstat(install.Socket()); err != nil {
						return errStopping
					}
					runtime.Gosched()
				}
			}
			if role == "leaving" {
				_ = os.Remove(install.Socket())
			}
			crash()
			return nil
		},
	})
	go func() { <-stop; server.GracefulStop() }()
	_ = server.Serve(listener)
	return 0
}

var errStopping = reject(codes.Unavailable, agboxv1.ErrorReason_DAEMON_STOPPING, "The daemon is stopping; try again.")

// mark is a file that shows that a daemon of the install has already acted once.
func mark(install paths.Install) string { return filepath.Join(install.Data, "mark") }

// startsOf counts the daemons of the install that were started.
func startsOf(t *testing.T) int {
	t.Helper()
	install, err := paths.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(install.Data, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// first reports whether it is the first call by any daemon of the install.
func first(install paths.Install) bool {
	f, err := os.OpenFile(mark(install), os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

// crash ends the process as a crash does.
func crash() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// inHome gives the test its own install, with this binary as its daemon.
func inHome(t *testing.T, role string) DaemonConfig {
	t.Helper()
	t.Setenv("AGBOX_HOME", shortDir(t))
	t.Setenv("AGBOX_CLIENT_TEST_DAEMON", role)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each daemon takes a second to end
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() { // a failed test may leave one that nobody has stopped
			waitForChildren(t)
		}
	})
	return DaemonConfig{Binary: own}
}

// waitForChildren returns when every process that this one has started is gone and
// reaped.
func waitForChildren(t *testing.T) {
	t.Helper()
	for {
		switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case unix.ECHILD:
			return
		case nil, unix.EINTR: // its starter is about to reap it
			runtime.Gosched()
		default:
			t.Fatal(err)
		}
	}
}

// A daemon that is being killed still accepts connections, but never answers.
func TestADaemonThatDiesBeforeItsFirstAnswerIsStartedAgain(t *testing.T) {
	config := inHome(t, "good")
	died := dyingDaemon(t)
	c, err := New(WithAutostart(config))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	<-died
	if _, err := c.StopDaemon(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAStartDoesNotTakeADyingDaemonForARunningOne(t *testing.T) {
	config := inHome(t, "good")
	died := dyingDaemon(t)
	p, err := StartDaemon(t.Context(), config)
	if err != nil || !p.Started {
		t.Errorf("the start gave %+v, %v", p, err)
	}
	<-died
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if pid, err := c.StopDaemon(t.Context()); err != nil || pid != p.PID {
		t.Errorf("stopped %d, %v; started %d", pid, err, p.PID)
	}
}

// The started daemon found the lock held by a daemon that was killed a moment later.
func TestADaemonThatFoundAnotherWhichIsGoneIsStartedAgain(t *testing.T) {
	config := inHome(t, "beaten")
	p, err := StartDaemon(t.Context(), config)
	if err != nil || !p.Started {
		t.Fatalf("the start gave %+v, %v", p, err)
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if pid, err := c.StopDaemon(t.Context()); err != nil || pid != p.PID {
		t.Errorf("stopped %d, %v; started %d", pid, err, p.PID)
	}
}

// dyingDaemon accepts one connection on the socket of the install and exits. It then
// closes the channel.
func dyingDaemon(t *testing.T) <-chan struct{} {
	t.Helper()
	install, err := paths.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(install.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	dying, err := net.Listen("unix", install.Socket())
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan struct{})
	go func() {
		defer close(died)
		conn, err := dying.Accept()
		_ = dying.Close()
		if err == nil {
			_ = conn.Close()
		}
	}()
	return died
}

func TestTheFirstCallStartsADaemonAndStopEndsIt(t *testing.T) {
	config := inHome(t, "good")
	c, err := New(WithAutostart(config))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	answer, err := c.Ping(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := StartDaemon(t.Context(), config)
	if err != nil || again.Started || again.PID != int(answer.GetPid()) {
		t.Errorf("a second start gave %+v, %v; the daemon is %d", again, err, answer.GetPid())
	}
	pid, err := c.StopDaemon(t.Context())
	if err != nil || pid != int(answer.GetPid()) {
		t.Errorf("stopped %d, %v", pid, err)
	}
	if _, err := c.StopDaemon(t.Context()); !errors.Is(err, ErrDaemonNotRunning) {
		t.Errorf("a second stop gave %v", err)
	}
}

func TestADaemonThatCrashesUnderACreateIsStartedAgain(t *testing.T) {
	for _, role := range []string{"crashing create", "crashing wait"} {
		t.Run(role, func(t *testing.T) {
			c, err := New(WithAutostart(inHome(t, role)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			before, err := c.Ping(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			box, err := c.CreateSandbox(t.Context(), &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: "x"}})
			if err != nil {
				t.Fatal(err)
			}
			if h, err := c.WaitReady(t.Context(), box.GetSandboxId()); err != nil || h.GetState() != ready {
				t.Errorf("the wait ended with %v, %v", h, err)
			}
			if pid, err := c.StopDaemon(t.Context()); err != nil || pid == int(before.GetPid()) {
				t.Errorf("stopped %d, %v; the daemon before the crash was %d", pid, err, before.GetPid())
			}
		})
	}
}

func TestADaemonThatCrashesUnderACallIsStartedAgain(t *testing.T) {
	c, err := New(WithAutostart(inHome(t, "crashing get")))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetSandbox(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if _, err := c.StopDaemon(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestADaemonThatStopsUnderAWaitIsNotStartedAgain(t *testing.T) {
	c, err := New(WithAutostart(inHome(t, "stopping")), WithReconnect(2*restartAfter))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.WaitReady(t.Context(), "box"); !errors.Is(err, ErrDaemonUnreachable) {
		t.Errorf("the wait ended with %v", err)
	}
	if pid, err := c.StopDaemon(t.Context()); !errors.Is(err, ErrDaemonUnreachable) {
		t.Errorf("daemon %d runs (%v)", pid, err)
	}
}

func TestStartsAtTheSameTimeGiveOneDaemon(t *testing.T) {
	config := inHome(t, "good")
	var mu sync.Mutex // guards pids and started
	pids, started := map[int]bool{}, 0
	var starts sync.WaitGroup
	for range 4 {
		starts.Go(func() {
			p, err := StartDaemon(t.Context(), config)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			pids[p.PID] = true
			if p.Started {
				started++
			}
		})
	}
	starts.Wait()
	if len(pids) != 1 || started != 1 {
		t.Errorf("the daemons %v answered, %d callers say they started it", pids, started)
	}
	if n := startsOf(t); n != 1 {
		t.Errorf("%d daemons were started, and all but one found another", n)
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.StopDaemon(t.Context()); err != nil {
		t.Error(err)
	}
}

// A daemon that is still starting when another one answers would run unwanted if that one
// is stopped a moment later.
func TestAStartThatAnotherDaemonOvertookLeavesNoProcess(t *testing.T) {
	config := inHome(t, "slow")
	install, err := paths.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	agboxv1.RegisterSandboxServiceServer(server, &script{ping: func(context.Context) (*agboxv1.PingResponse, error) {
		return &agboxv1.PingResponse{Daemon: "agboxd", Pid: uint32(os.Getpid())}, nil
	}})
	var other sync.WaitGroup
	other.Go(func() {
		for { // until the starting one has begun
			if log, _ := os.ReadFile(install.DaemonLog()); len(log) > 0 {
				break
			}
			runtime.Gosched()
		}
		if err := os.MkdirAll(install.Run, 0o700); err != nil {
			t.Error(err)
		}
		listener, err := net.Listen("unix", install.Socket())
		if err != nil {
			t.Error(err)
			return
		}
		_ = server.Serve(listener)
	})
	p, err := StartDaemon(t.Context(), config)
	if err != nil || p.Started || p.PID != os.Getpid() {
		t.Errorf("the start gave %+v, %v", p, err)
	}
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("a process was left: %v", err)
	}
	server.Stop()
	other.Wait()
}

func TestADaemonThatEndsAtOnceIsQuoted(t *testing.T) {
	config := inHome(t, "broken")
	_, err := StartDaemon(t.Context(), config)
	if !errors.Is(err, ErrDaemonUnreachable) {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"exit status 3", "The database is truncated.", "agboxd.log"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}

func TestADaemonThatIsNotThereIsSaidToBeMissing(t *testing.T) {
	t.Setenv("AGBOX_HOME", shortDir(t))
	t.Setenv("PATH", shortDir(t))
	_, err := StartDaemon(t.Context(), DaemonConfig{})
	if err == nil || !strings.Contains(err.Error(), "The daemon is not installed: agboxd is neither beside ") {
		t.Errorf("got %v", err)
	}
}

func TestAProcessThatOnlySaysItIsTheDaemonIsNotSignalled(t *testing.T) {
	config := inHome(t, "impostor")
	p, err := StartDaemon(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.StopDaemon(t.Context()); !errors.Is(err, ErrWrongState) {
		t.Errorf("got %v", err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGTERM); err != nil {
		t.Errorf("it is gone: %v", err)
	}
}

func TestAStartThatTakesTooLongIsGivenUp(t *testing.T) {
	config := inHome(t, "good")
	config.Binary = "/bin/sleep" // rejects "run" and exits: another program that fails quickly
	config.Timeout = time.Minute
	if _, err := StartDaemon(t.Context(), config); err == nil || !strings.Contains(err.Error(), "ended right after its start") {
		t.Errorf("got %v", err)
	}
}

// A daemon that was stopped with SIGSTOP is like this: the kernel takes the connections.
func TestADaemonThatDoesNotAnswerIsNotSaidToBeMissing(t *testing.T) {
	old := dialTimeout
	dialTimeout = 50 * time.Millisecond
	t.Cleanup(func() { dialTimeout = old })
	inHome(t, "good")
	install, err := paths.FromEnv()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(install.Run, 0o700); err != nil {
		t.Fatal(err)
	}
	frozen, err := net.Listen("unix", install.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	for range 20 {
		if pid, err := listenerPID(t.Context(), install.Socket(), ownUsers()); err != nil || pid != os.Getpid() {
			t.Fatalf("process %d listens, %v", pid, err)
		}
	}
	c, err := New(WithReconnect(0))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.StopDaemon(t.Context())
	if err == nil || errors.Is(err, ErrDaemonNotRunning) || !strings.Contains(err.Error(), fmt.Sprintf("kill -9 %d", os.Getpid())) {
		t.Errorf("the stop gave %v", err)
	}
}
