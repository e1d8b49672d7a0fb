package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// actor is a fake supervisor. A function that is nil answers correctly.
type actor struct {
	hello *guestv1.HelloResponse
	// greeted, if set, is called at each Hello.
	greeted func()
	start   func(context.Context, *guestv1.StartRequest) (*guestv1.StartResponse, error)
	stdin   func(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error)
	// watch runs after the message that confirms the watch. With mute there is no such
	// message.
	watch     func(context.Context, *guestv1.WatchRequest, func(*guestv1.WatchResponse) error) error
	mute      bool
	processes func(after uint32) (*guestv1.ProcessesResponse, error)
	// main is the exec id that a Release returns.
	main string
}

func (a *actor) methods() rpc.Methods {
	return rpc.Methods{
		"guest.v1.Supervisor/Hello":      rpc.Unary(a.Hello),
		"guest.v1.Supervisor/Start":      rpc.Unary(a.Start),
		"guest.v1.Supervisor/Cancel":     rpc.Unary(a.Cancel),
		"guest.v1.Supervisor/Signal":     rpc.Unary(a.Signal),
		"guest.v1.Supervisor/WriteStdin": rpc.Unary(a.WriteStdin),
		"guest.v1.Supervisor/Resize":     rpc.Unary(a.Resize),
		"guest.v1.Supervisor/Watch":      rpc.Stream(a.Watch),
		"guest.v1.Supervisor/Release":    rpc.Unary(a.Release),
		"guest.v1.Supervisor/Processes":  rpc.Unary(a.Processes),
	}
}

func (a *actor) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	if a.greeted != nil {
		a.greeted()
	}
	if a.hello != nil {
		return a.hello, nil
	}
	return &guestv1.HelloResponse{Protocol: 1, BootId: "boot", SupervisorVersion: "old"}, nil
}

func (a *actor) Processes(_ context.Context, req *guestv1.ProcessesRequest) (*guestv1.ProcessesResponse, error) {
	return a.processes(req.GetAfterPid())
}

func (a *actor) Release(context.Context, *guestv1.ReleaseRequest) (*guestv1.ReleaseResponse, error) {
	return &guestv1.ReleaseResponse{MainExecId: a.main}, nil
}

func (a *actor) Start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	if a.start != nil {
		return a.start(ctx, req)
	}
	return &guestv1.StartResponse{Exec: running(req.GetExecId())}, nil
}

func (*actor) Cancel(context.Context, *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	return &guestv1.CancelResponse{Running: true}, nil
}

func (*actor) Signal(context.Context, *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	return &guestv1.SignalResponse{Running: true}, nil
}

func (a *actor) WriteStdin(ctx context.Context, req *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	if a.stdin != nil {
		return a.stdin(ctx, req)
	}
	return &guestv1.WriteStdinResponse{Offset: req.GetOffset() + uint64(len(req.GetData())), Open: true}, nil
}

func (*actor) Resize(context.Context, *guestv1.ResizeRequest) (*guestv1.ResizeResponse, error) {
	return &guestv1.ResizeResponse{Running: true}, nil
}

func (a *actor) Watch(ctx context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if !a.mute {
		if err := send(&guestv1.WatchResponse{Watching: true}); err != nil {
			return err
		}
	}
	if a.watch != nil {
		return a.watch(ctx, req, send)
	}
	<-ctx.Done()
	return ctx.Err()
}

func running(id string) *guestv1.ExecRecord {
	return &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, Pid: 7, BootId: "boot"}
}

// play serves an actor in a link directory and returns its path.
func play(t *testing.T, a *actor) (linkDir string) {
	t.Helper()
	dir := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "guest.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	serving.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := rpc.NewConn(raw, func() {})
			context.AfterFunc(ctx, conn.Close)
			serving.Go(func() { conn.Serve(ctx, bufio.NewReader(raw), a.methods()) })
		}
	})
	t.Cleanup(func() { cancel(); _ = l.Close(); serving.Wait() })
	return dir
}

// shortDir returns a directory whose path is short enough for a socket address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agbox-guest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// anyone accepts every listener.
func anyone(context.Context, int) error { return nil }

func dial(t *testing.T, linkDir string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), linkDir, anyone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func wantReason(t *testing.T, err error, reason agboxv1.ErrorReason) {
	t.Helper()
	if f := fault.Of(err); f == nil || f.Reason != reason {
		t.Errorf("the error is %v, its reason not %s", err, reason)
	}
}

func TestDialFollowsNothingButASocket(t *testing.T) {
	other := play(t, &actor{}) // in place of the engine's socket
	put := map[string]func(link string) error{
		"symbolic link": func(link string) error {
			return os.Symlink(filepath.Join(other, "guest.sock"), filepath.Join(link, "guest.sock"))
		},
		"dangling link": func(link string) error { return os.Symlink("/no/where", filepath.Join(link, "guest.sock")) },
		"file":          func(link string) error { return os.WriteFile(filepath.Join(link, "guest.sock"), nil, 0o600) },
		"FIFO":          func(link string) error { return unix.Mkfifo(filepath.Join(link, "guest.sock"), 0o600) },
		"directory":     func(link string) error { return os.Mkdir(filepath.Join(link, "guest.sock"), 0o700) },
		"folder link": func(link string) error {
			return errors.Join(os.Remove(link), os.Symlink(other, link))
		},
		"folder file": func(link string) error {
			return errors.Join(os.Remove(link), os.WriteFile(link, nil, 0o600))
		},
	}
	for name, put := range put {
		t.Run(name, func(t *testing.T) {
			link := filepath.Join(shortDir(t), "link")
			if err := errors.Join(os.Mkdir(link, 0o700), put(link)); err != nil {
				t.Fatal(err)
			}
			_, err := Dial(t.Context(), link, anyone)
			wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
		})
	}
}

func TestAMissingSupervisorIsUnreachable(t *testing.T) {
	dir := shortDir(t)
	_, err := Dial(t.Context(), dir, anyone)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE)
	_, err = Dial(t.Context(), filepath.Join(dir, "none"), anyone)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE)

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "guest.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // the socket of a supervisor that has died
	_, err = Dial(t.Context(), dir, anyone)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE)
	if !errdefs.IsUnavailable(err) {
		t.Errorf("not retryable: %v", err)
	}
}

func TestDialingASilentSupervisorEndsAtTheDeadline(t *testing.T) {
	dir := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "guest.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, dir, anyone)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestAPathLongerThanASocketAddressIsReached(t *testing.T) {
	dir := play(t, &actor{})
	long := filepath.Join(shortDir(t), strings.Repeat("x", 150))
	if err := os.Rename(dir, long); err != nil {
		t.Fatal(err)
	}
	dial(t, long)
}

func TestOlderAndNewerSupervisorsAreAccepted(t *testing.T) {
	for _, protocol := range []uint32{1, rpc.Protocol + 7} {
		c := dial(t, play(t, &actor{hello: &guestv1.HelloResponse{Protocol: protocol, BootId: "b", SupervisorVersion: "v"}}))
		if c.BootID() != "b" || c.Version() != "v" {
			t.Errorf("boot id %q, version %q", c.BootID(), c.Version())
		}
	}
}

func TestAnInvalidGreetingIsTampering(t *testing.T) {
	for _, hello := range []*guestv1.HelloResponse{
		{Protocol: 0, BootId: "b"},
		{Protocol: 1},
		{Protocol: 1, BootId: strings.Repeat("b", rpc.MaxBootID+1)},
		{Protocol: 1, BootId: "b", SupervisorVersion: strings.Repeat("v", maxVersion+1)},
		{Protocol: 1, BootId: "b", MainExecId: "../x"},
	} {
		_, err := Dial(t.Context(), play(t, &actor{hello: hello}), anyone)
		wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
	}
}

func TestAnOversizedReplyIsNotRead(t *testing.T) {
	_, err := Dial(t.Context(), play(t, &actor{hello: &guestv1.HelloResponse{SupervisorVersion: strings.Repeat("v", rpc.MaxReply)}}), anyone)
	wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
	if !errors.Is(err, rpc.ErrFrame) {
		t.Error(err)
	}
}

func lies() map[string]*guestv1.ExecRecord {
	with := func(change func(*guestv1.ExecRecord)) *guestv1.ExecRecord {
		r := running("e")
		change(r)
		return r
	}
	return map[string]*guestv1.ExecRecord{
		"bad id":     running("../x"),
		"no id":      running(""),
		"phase":      with(func(r *guestv1.ExecRecord) { r.Phase = 99 }),
		"message":    with(func(r *guestv1.ExecRecord) { r.FailureMessage = strings.Repeat("x", rpc.MaxFailureMessage+1) }),
		"boot id":    with(func(r *guestv1.ExecRecord) { r.BootId = strings.Repeat("x", rpc.MaxBootID+1) }),
		"exit code":  with(func(r *guestv1.ExecRecord) { r.ExitCode = 256 }),
		"negative":   with(func(r *guestv1.ExecRecord) { r.ExitCode = -1 }),
		"signal":     with(func(r *guestv1.ExecRecord) { r.Signal = 128 }),
		"pid":        with(func(r *guestv1.ExecRecord) { r.Pid = -1 }),
		"time":       with(func(r *guestv1.ExecRecord) { r.FinishedAt = &guestv1.Timestamp{Nanos: -1} }),
		"cause":      with(func(r *guestv1.ExecRecord) { r.EndCause = maxEndCause + 1 }),
		"no cause":   with(func(r *guestv1.ExecRecord) { r.EndCause = -1 }),
		"cpu time":   with(func(r *guestv1.ExecRecord) { r.SystemUs = maxMicroseconds + 1 }),
		"memory":     with(func(r *guestv1.ExecRecord) { r.PeakMemoryBytes = 1 << 63 }),
		"bytes":      with(func(r *guestv1.ExecRecord) { r.StderrDroppedBytes = 1 << 63 }),
		"start time": with(func(r *guestv1.ExecRecord) { r.StartedAt = &guestv1.Timestamp{Seconds: 1 << 60} }),
	}
}

func TestAnInvalidReplyIsTampering(t *testing.T) {
	all := lies()
	all["other exec"] = running("f")
	all["unknown"] = &guestv1.ExecRecord{ExecId: "e"}
	all["nothing"] = nil
	for name, lie := range all {
		t.Run(name, func(t *testing.T) {
			c := dial(t, play(t, &actor{start: func(context.Context, *guestv1.StartRequest) (*guestv1.StartResponse, error) {
				return &guestv1.StartResponse{Exec: lie}, nil
			}}))
			_, err := c.Start(t.Context(), &guestv1.StartRequest{ExecId: "e", Command: []string{"true"}})
			wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
			<-c.Done()
		})
	}
}

func TestAnInvalidRecordInAWatchIsTampering(t *testing.T) {
	for name, lie := range lies() {
		t.Run(name, func(t *testing.T) {
			c := dial(t, play(t, &actor{watch: func(_ context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
				return send(&guestv1.WatchResponse{Exec: lie})
			}}))
			err := c.Watch(t.Context(), nil, func() {}, func(r *guestv1.ExecRecord) { t.Errorf("reported %v", r) })
			wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
			<-c.Done()
		})
	}
}

func TestAnUnconfirmedWatchIsTampering(t *testing.T) {
	for name, a := range map[string]*actor{
		"record first": {mute: true, watch: func(_ context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
			return send(&guestv1.WatchResponse{Exec: running("e")})
		}},
		"confirmed twice": {watch: func(_ context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
			return send(&guestv1.WatchResponse{Watching: true})
		}},
	} {
		c := dial(t, play(t, a))
		err := c.Watch(t.Context(), nil, func() {}, func(r *guestv1.ExecRecord) { t.Errorf("%s: reported %v", name, r) })
		wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
	}
}

// rawReply answers the greeting and then sends the given bytes.
func rawReply(t *testing.T, frames []byte) (linkDir string) {
	t.Helper()
	dir := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, "guest.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Read(make([]byte, 4096)); err != nil {
			return
		}
		greeting := "\x12\x09\x08\x01\x1a\x05boot1"
		_, _ = c.Write(append([]byte{0, 0, 0, byte(len(greeting)), 0, 0, 0, 1, 2, 0}, greeting...))
		_, _ = c.Write(frames)
		_, _ = c.Read(make([]byte, 4096)) // until the other side closes
	})
	return dir
}

func TestHostileFramesCloseOnlyTheConnection(t *testing.T) {
	for name, frames := range map[string][]byte{
		"unknown stream": {0, 0, 0, 0, 0, 0, 0, 99, 2, 0},
		"second answer":  {0, 0, 0, 0, 0, 0, 0, 1, 2, 0},
		"request":        {0, 0, 0, 0, 0, 0, 0, 1, 1, 0},
		"type":           {0, 0, 0, 0, 0, 0, 0, 1, 77, 0},
		"huge":           {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 3, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Dial(t.Context(), rawReply(t, frames), anyone)
			if err == nil { // the frames may come before or after the greeting is read
				<-c.Done()
				_, err = c.Cancel(t.Context(), "e", 0)
				c.Close()
			}
			wantReason(t, err, agboxv1.ErrorReason_SUPERVISOR_TAMPERED)
		})
	}
}

func TestRefusalsKeepTheirClass(t *testing.T) {
	for code, is := range map[rpc.Code]func(error) bool{
		rpc.InvalidArgument:   errdefs.IsInvalidArgument,
		rpc.ResourceExhausted: errdefs.IsResourceExhausted,
		rpc.Unimplemented:     errdefs.IsNotImplemented,
		rpc.Unavailable:       errdefs.IsUnavailable,
		rpc.Internal:          errdefs.IsInternal,
		15:                    errdefs.IsInternal,
	} {
		c := dial(t, play(t, &actor{start: func(context.Context, *guestv1.StartRequest) (*guestv1.StartResponse, error) {
			return nil, rpc.Errorf(code, "because %s", strings.Repeat("x", 10_000))
		}}))
		_, err := c.Start(t.Context(), &guestv1.StartRequest{ExecId: "e", Command: []string{"true"}})
		if !is(err) || len(err.Error()) > 1000 {
			t.Errorf("%d became %v", code, err)
		}
	}
}

func TestACallEndsWithItsContext(t *testing.T) {
	c := dial(t, play(t, &actor{start: func(ctx context.Context, _ *guestv1.StartRequest) (*guestv1.StartResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := c.Start(ctx, &guestv1.StartRequest{ExecId: "e", Command: []string{"true"}})
	if !errors.Is(err, context.DeadlineExceeded) || !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	if ok, err := c.Signal(t.Context(), "e", 9); !ok || err != nil {
		t.Errorf("the connection did not outlive the call: %v", err)
	}
}

func TestACommandOverTheLimitIsNotSent(t *testing.T) {
	c := dial(t, play(t, &actor{}))
	_, err := c.Start(t.Context(), &guestv1.StartRequest{ExecId: "e", Command: []string{strings.Repeat("x", 1<<20)}})
	wantReason(t, err, agboxv1.ErrorReason_COMMAND_TOO_LONG)
	if !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

func TestTheWatchEndsWithItsContextOrItsConnection(t *testing.T) {
	c := dial(t, play(t, &actor{watch: func(ctx context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
		for _, id := range req.GetExecIds() {
			if err := send(&guestv1.WatchResponse{Exec: running(id)}); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	var got []string
	err := c.Watch(ctx, []string{"a", "b"}, func() { got = append(got, "watching") }, func(r *guestv1.ExecRecord) {
		if got = append(got, r.GetExecId()); len(got) == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || strings.Join(got, " ") != "watching a b" {
		t.Errorf("%v after %v", err, got)
	}
	<-c.Done()

	c = dial(t, play(t, &actor{watch: func(context.Context, *guestv1.WatchRequest, func(*guestv1.WatchResponse) error) error {
		return nil
	}}))
	if err := c.Watch(t.Context(), nil, func() {}, nil); !errdefs.IsUnavailable(err) {
		t.Errorf("a watch that was ended: %v", err)
	}
}

func TestTheBinaryIsInstalledUnderItsHashAndKeptIntact(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "agbox-init")
	write := func(path, content string) {
		t.Helper()
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	install := func() (string, os.FileInfo) {
		t.Helper()
		path, err := InstallBinary(source, filepath.Join(dir, "to", "here"))
		if err != nil {
			t.Fatal(err)
		}
		st, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		return path, st
	}
	write(source, "one")
	first, made := install()
	if made.Mode() != 0o555 {
		t.Errorf("the copy has mode %v", made.Mode())
	}
	if again, st := install(); again != first || !os.SameFile(st, made) {
		t.Error("an intact copy was made again")
	}
	write(first, "damaged")
	if err := os.Chmod(first, 0o555); err != nil {
		t.Fatal(err)
	}
	if again, _ := install(); again != first {
		t.Error("the repaired copy has another name")
	}
	if raw, err := os.ReadFile(first); err != nil || string(raw) != "one" {
		t.Errorf("the damaged copy holds %q, %v", raw, err)
	}
	write(source, "two")
	second, _ := install()
	if second == first {
		t.Error("two binaries share one name")
	}
	if raw, err := os.ReadFile(first); err != nil || string(raw) != "one" {
		t.Errorf("the old binary was touched: %q, %v", raw, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "to", "here", ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInstallingRemovesLeftoversOfKilledInstallsOnly(t *testing.T) {
	from, dir := t.TempDir(), t.TempDir()
	left := filepath.Join(dir, ".agbox-init-123")
	if err := os.WriteFile(left, []byte("hal"), 0o600); err != nil {
		t.Fatal(err)
	}
	var installs sync.WaitGroup
	for i := range 8 {
		source := filepath.Join(from, strconv.Itoa(i))
		if err := os.WriteFile(source, bytes.Repeat([]byte{byte(i)}, 1<<20), 0o755); err != nil {
			t.Fatal(err)
		}
		installs.Go(func() {
			if _, err := InstallBinary(source, dir); err != nil {
				t.Error(err)
			}
		})
	}
	installs.Wait()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 8 || strings.HasPrefix(entries[0].Name(), ".") {
		t.Errorf("the folder has %v (%v), want the 8 copies and nothing else", entries, err)
	}
}

func TestAMissingBinaryIsReportedWithItsPlace(t *testing.T) {
	_, err := FindBinary() // the test's directory has none
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "agbox-init is missing") {
		t.Error(err)
	}
}

func TestATruncatedTextOfTheSupervisorStaysValidUTF8(t *testing.T) {
	if got := bounded(strings.Repeat("x", 511) + "ä" + "rest"); got != strings.Repeat("x", 511) {
		t.Errorf("%d bytes, the last %q", len(got), got[len(got)-2:])
	}
}

func TestAListenerThatIsRefusedGetsNothing(t *testing.T) {
	refusal := Tampered("it is somebody else", nil)
	heard := make(chan struct{}, 2)
	dir := play(t, &actor{greeted: func() { heard <- struct{}{} }})
	asked := 0
	refuse := func(_ context.Context, pid int) error { asked = pid; return refusal }
	if _, err := Dial(t.Context(), dir, refuse); !errors.Is(err, refusal) || asked != os.Getpid() {
		t.Errorf("Dial asks about %d and gives %v", asked, err)
	}
	if _, err := DialTransfer(t.Context(), dir, refuse, &guestv1.TransferRequest{}); !errors.Is(err, refusal) {
		t.Errorf("DialTransfer gives %v", err)
	}
	if len(heard) > 0 {
		t.Error("the listener was greeted")
	}
}
