package execs

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// supervisor answers as a test says, on the socket of sandbox "a".
type supervisor struct {
	boot string
	// main is the exec id of the container's own command. protocol is the supervisor's
	// version; 0 means the current one.
	main     string
	protocol uint32
	// start answers Start. If it returns nil, the link breaks instead.
	start func(*guestv1.StartRequest) *guestv1.ExecRecord
	// known are the records that Watch reports. Other execs are unknown.
	known map[string]*guestv1.ExecRecord

	// asked is called by Watch before it confirms the watch, if not nil.
	asked func()

	// unheard is how many calls of Cancel and Signal come before the exec has started.
	unheard atomic.Int32

	// breaks is how many calls of Resize break the link. resizes counts all calls.
	breaks, resizes atomic.Int32

	mu     sync.Mutex // guards starts
	starts []string
	exits  chan *guestv1.ExecRecord
	cut    func()
}

func (s *supervisor) methods() rpc.Methods {
	return rpc.Methods{
		"guest.v1.Supervisor/Hello":      rpc.Unary(s.Hello),
		"guest.v1.Supervisor/Start":      rpc.Unary(s.Start),
		"guest.v1.Supervisor/Cancel":     rpc.Unary(s.Cancel),
		"guest.v1.Supervisor/Signal":     rpc.Unary(s.Signal),
		"guest.v1.Supervisor/Processes":  rpc.Unary(s.Processes),
		"guest.v1.Supervisor/Release":    rpc.Unary(s.Release),
		"guest.v1.Supervisor/WriteStdin": rpc.Unary(s.WriteStdin),
		"guest.v1.Supervisor/Resize":     rpc.Unary(s.Resize),
		"guest.v1.Supervisor/Watch":      rpc.Stream(s.Watch),
	}
}

func (s *supervisor) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{
		Protocol: cmp.Or(s.protocol, rpc.Protocol), SupervisorVersion: "test", BootId: s.boot, MainExecId: s.main,
	}, nil
}

func (s *supervisor) Start(_ context.Context, req *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	s.mu.Lock()
	s.starts = append(s.starts, req.GetExecId())
	s.mu.Unlock()
	if s.start == nil {
		s.cut()
		return nil, net.ErrClosed
	}
	return &guestv1.StartResponse{Exec: s.start(req)}, nil
}

func (s *supervisor) started() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.starts)
}

func (s *supervisor) Cancel(context.Context, *guestv1.CancelRequest) (*guestv1.CancelResponse, error) {
	return &guestv1.CancelResponse{Running: s.unheard.Add(-1) < 0}, nil
}

func (s *supervisor) Signal(context.Context, *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	return &guestv1.SignalResponse{Running: s.unheard.Add(-1) < 0}, nil
}

func (s *supervisor) Processes(context.Context, *guestv1.ProcessesRequest) (*guestv1.ProcessesResponse, error) {
	return new(guestv1.ProcessesResponse), nil
}

func (s *supervisor) Release(context.Context, *guestv1.ReleaseRequest) (*guestv1.ReleaseResponse, error) {
	return &guestv1.ReleaseResponse{MainExecId: s.main}, nil
}

func (s *supervisor) WriteStdin(context.Context, *guestv1.WriteStdinRequest) (*guestv1.WriteStdinResponse, error) {
	return &guestv1.WriteStdinResponse{}, nil
}

func (s *supervisor) Resize(context.Context, *guestv1.ResizeRequest) (*guestv1.ResizeResponse, error) {
	s.resizes.Add(1)
	if s.breaks.Add(-1) >= 0 {
		s.cut()
		return nil, net.ErrClosed
	}
	return &guestv1.ResizeResponse{Running: true}, nil
}

func (s *supervisor) Watch(ctx context.Context, req *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if s.asked != nil {
		s.asked()
	}
	if err := send(&guestv1.WatchResponse{Watching: true}); err != nil {
		return err
	}
	for _, id := range req.GetExecIds() {
		rec, ok := s.known[id]
		if !ok {
			rec = &guestv1.ExecRecord{ExecId: id}
		}
		if err := send(&guestv1.WatchResponse{Exec: rec}); err != nil {
			return err
		}
	}
	for {
		select {
		case rec := <-s.exits:
			if err := send(&guestv1.WatchResponse{Exec: rec}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// bench is a ledger with a READY sandbox "a", and the Runner under test.
type bench struct {
	*guesttest.Bench
	t       *testing.T
	install paths.Install
	ledger  *ledger.Ledger
	runner  *Runner
	lost    chan string
	// left are the records that were written as status files.
	left map[string]*guestv1.ExecRecord
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := guesttest.New(t)
	return &bench{
		Bench: b, t: t, install: b.Install, ledger: b.Ledger, lost: b.Lost,
		runner: New(b.Links, b.Ledger, b.Install, time.Now, b.Log),
	}
}

// serve starts a supervisor. The function that it returns ends the supervisor.
func (b *bench) serve(s *supervisor) func() {
	b.t.Helper()
	s.exits = make(chan *guestv1.ExecRecord, 1)
	cut, end := b.Serve(s.methods())
	s.cut = cut
	return end
}

func (b *bench) connect() {
	b.t.Helper()
	b.Connect()
}

// create accepts exec "x" and waits until it has been sent to the supervisor.
func (b *bench) create() {
	b.t.Helper()
	started, err := b.runner.Create(b.t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}})
	if err != nil {
		b.t.Fatal(err)
	}
	<-started
}

// ended waits for the end of exec "x" and returns its status.
func (b *bench) ended() *agboxv1.ExecStatus {
	b.t.Helper()
	<-b.ledger.ExecDone("x")
	status, err := b.ledger.Exec(b.t.Context(), "a", "x")
	if err != nil {
		b.t.Fatal(err)
	}
	return status
}

func runs(boot string) func(*guestv1.StartRequest) *guestv1.ExecRecord {
	return func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		return &guestv1.ExecRecord{ExecId: req.GetExecId(), Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: boot}
	}
}

func exited(code int32) *guestv1.ExecRecord {
	return &guestv1.ExecRecord{ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, ExitCode: code, BootId: "boot1", StdoutBytes: 5}
}

func TestExitIsRecordedWhenItIsPushed(t *testing.T) {
	b := newBench(t)
	s := &supervisor{boot: "boot1", start: runs("boot1")}
	b.serve(s)
	b.connect()
	b.create()
	s.exits <- exited(7)
	if st := b.ended(); st.GetExitCode() != 7 || st.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || st.GetStdoutBytes() != 5 {
		t.Errorf("status %v", st)
	}
}

func TestAnExecWhoseLogNobodyCouldReadIsNotAccepted(t *testing.T) {
	b := newBench(t)
	s := &supervisor{boot: "boot1", start: runs("boot1")}
	b.serve(s)
	b.connect()
	if err := os.RemoveAll(b.install.SandboxLogs("a")); err != nil {
		t.Fatal(err)
	}
	_, err := b.runner.Create(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}})
	if fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_PATH_UNUSABLE {
		t.Errorf("Create gives %v", err)
	}
	if sb, _ := b.ledger.Sandbox("a"); len(sb.Execs) != 0 || s.started() != 0 {
		t.Errorf("the execs are %v, and %d were started", sb.Execs, s.started())
	}
}

func TestADroppedLinkIsUsedNoMore(t *testing.T) {
	b := newBench(t)
	b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
	b.connect()
	b.Links.Drop("a")
	if b.Links.Connected("a") {
		t.Fatal("the link still stands")
	}
	<-b.lost
	b.serve(&supervisor{boot: "boot2", start: func(*guestv1.StartRequest) *guestv1.ExecRecord { return exited(6) }})
	b.connect()
	b.create()
	if st := b.ended(); st.GetExitCode() != 6 {
		t.Errorf("status %v", st)
	}
}

func TestImageUserAndDirectoryAreTheDefaults(t *testing.T) {
	b := newBench(t)
	var got *guestv1.StartRequest
	b.serve(&supervisor{boot: "boot1", start: func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		got = req
		return exited(0)
	}})
	b.connect()
	b.create()
	b.ended()
	if got.GetUser() != "agent" || got.GetCwd() != "/work" {
		t.Errorf("user %q, directory %q", got.GetUser(), got.GetCwd())
	}
}

func TestExitWhileTheDaemonWasAwayIsTheRealOne(t *testing.T) {
	b := newBench(t)
	end := b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
	b.connect()
	b.create()
	end()
	<-b.lost
	b.serve(&supervisor{boot: "boot1", known: map[string]*guestv1.ExecRecord{"x": exited(9)}})
	b.connect()
	if st := b.ended(); st.GetExitCode() != 9 || st.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("status %v", st)
	}
}

// An exec is accepted shortly before its supervisor receives it.
func TestAKillOfAnExecThatHasJustBeenAcceptedReachesIt(t *testing.T) {
	for name, kill := range map[string]func(*bench) error{
		"cancel": func(b *bench) error { return b.runner.Cancel(b.t.Context(), "a", "x", 0) },
		"signal": func(b *bench) error { return b.runner.Signal(b.t.Context(), "a", "x", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := &supervisor{boot: "boot1", start: runs("boot1")}
			s.unheard.Store(3)
			b.serve(s)
			b.connect()
			b.create()
			if err := kill(b); err != nil {
				t.Fatal(err)
			}
			s.unheard.Store(math.MaxInt32)
			s.exits <- exited(0)
			b.ended()
			if err := kill(b); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

func TestAcceptedExecThatNeverArrivedIsStartedOnce(t *testing.T) {
	b := newBench(t)
	b.serve(&supervisor{boot: "boot1"}) // the link breaks in Start
	b.connect()
	b.create()
	<-b.lost
	s := &supervisor{boot: "boot1", start: func(*guestv1.StartRequest) *guestv1.ExecRecord { return exited(3) }}
	b.serve(s)
	b.connect()
	if st := b.ended(); st.GetExitCode() != 3 {
		t.Errorf("status %v", st)
	}
	if n := s.started(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

// When an exec is accepted, its link may have been replaced by a new one, which has
// listed the recorded execs before.
func TestAnExecThatIsAcceptedAfterTheNextLinkHasAskedIsDecided(t *testing.T) {
	for name, boot := range map[string]string{"the same supervisor": "boot1", "its next life": "boot2"} {
		for when, confirmed := range map[string]bool{"linked": true, "being linked": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				b := newBench(t)
				end := b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
				b.connect()
				old, err := b.Links.Get("a") // this is how Create and RunHook begin
				if err != nil {
					t.Fatal(err)
				}
				end()
				<-b.lost
				asked, gate := make(chan struct{}), make(chan struct{})
				s := &supervisor{
					boot:  boot,
					start: func(*guestv1.StartRequest) *guestv1.ExecRecord { return exited(3) },
					asked: func() { close(asked); <-gate },
				}
				b.serve(s)
				linked := make(chan error, 1)
				go func() { linked <- b.Links.Connect(context.Background(), "a") }()
				confirm := sync.OnceFunc(func() {
					close(gate)
					if err := <-linked; err != nil {
						t.Error(err)
					}
				})
				defer confirm()
				<-asked
				if confirmed {
					confirm()
				}
				req := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}}
				if _, err := b.ledger.AcceptExec(t.Context(), req, old.Conn.BootID()); err != nil {
					t.Fatal(err)
				}
				b.runner.start(t.Context(), old, req)
				confirm()
				st, starts := b.ended(), s.started()
				if boot == "boot1" && (st.GetExitCode() != 3 || starts != 1) {
					t.Errorf("started %d times, status %v", starts, st)
				}
				if boot == "boot2" && (st.GetErrorCode() != "EXEC_LOST" || starts != 0) {
					t.Errorf("started %d times, status %v", starts, st)
				}
			})
		}
	}
}

// There are more than the connection buffers while a report is being handled.
func TestManyAcceptedExecsThatNeverArrivedAreStartedOverOneLink(t *testing.T) {
	b := newBench(t)
	const many = 200
	var accepting sync.WaitGroup
	for i := range many {
		accepting.Go(func() {
			req := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: fmt.Sprint("x", i), Command: []string{"true"}}
			if _, err := b.ledger.AcceptExec(t.Context(), req, "boot1"); err != nil {
				t.Error(err)
			}
		})
	}
	accepting.Wait()
	s := &supervisor{boot: "boot1", start: func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		rec := exited(0)
		rec.ExecId = req.GetExecId()
		return rec
	}}
	b.serve(s)
	b.connect()
	for i := range many {
		select {
		case <-b.ledger.ExecDone(fmt.Sprint("x", i)):
		case <-b.lost:
			t.Fatalf("the link was lost after %d starts", s.started())
		}
	}
}

func TestExecOfAnEarlierSupervisorLifeIsLostAndNotStarted(t *testing.T) {
	for name, known := range map[string]map[string]*guestv1.ExecRecord{
		"unknown to the new one": nil,
		"running under the old":  {"x": {ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: "boot1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			end := b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
			b.connect()
			b.create()
			end()
			<-b.lost
			s := &supervisor{boot: "boot2", start: runs("boot2"), known: known}
			b.serve(s)
			b.connect()
			st := b.ended()
			if st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || st.GetExitCode() == 0 || st.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED {
				t.Errorf("status %v", st)
			}
			if s.started() != 0 {
				t.Error("it was started again")
			}
		})
	}
}

func TestEndAllTakesTheStatusThatWasLeftBehind(t *testing.T) {
	running := &guestv1.ExecRecord{ExecId: "x", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: "boot1"}
	stranger := exited(1)
	stranger.ExecId = "y"
	impossible := exited(256) // a shell would take it for 0
	tooLate := exited(143)
	tooLate.Phase, tooLate.EndCause = guestv1.ExecPhase_EXEC_PHASE_FAILED, guestv1.EndCause_END_CAUSE_STOP
	timeless := exited(1)
	timeless.FinishedAt = &guestv1.Timestamp{Nanos: -1}
	otherLife := exited(0)
	otherLife.BootId = "boot2"
	for name, tc := range map[string]struct {
		left *guestv1.ExecRecord
		stop bool
		code int32
		want agboxv1.ErrorReason
	}{
		"an exit":                      {left: exited(4), code: 4},
		"nothing":                      {code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"no end":                       {left: running, code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"somebody else's":              {left: stranger, code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"an exit that cannot be":       {left: impossible, code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"a time that cannot be":        {left: timeless, code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"an end of another life":       {left: otherLife, code: lostExitCode, want: agboxv1.ErrorReason_EXEC_LOST},
		"no end, asked for":            {left: running, stop: true, code: 137, want: agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC},
		"a stop before its start":      {left: tooLate, code: 143, want: agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC},
		"an exit, then a stop request": {left: exited(4), stop: true, code: 4},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
			b.connect()
			b.create()
			if tc.stop {
				if _, err := b.ledger.RequestStop(t.Context(), "a", ""); err != nil {
					t.Fatal(err)
				}
			}
			if tc.left != nil {
				b.leave(tc.left)
			}
			if err := b.endAll(false); err != nil {
				t.Fatal(err)
			}
			st := b.ended()
			want := ""
			if tc.want != 0 {
				want = tc.want.String()
			}
			if st.GetExitCode() != tc.code || st.GetErrorCode() != want {
				t.Errorf("exit code %d, reason %q; want %d, %q", st.GetExitCode(), st.GetErrorCode(), tc.code, want)
			}
		})
	}
}

func TestAStopThatNobodyAskedForIsNoStopOfTheSandbox(t *testing.T) {
	for asked, want := range map[bool]string{true: stoppedSentence, false: restartedSentence} {
		b := newBench(t)
		b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
		b.connect()
		b.create()
		if asked {
			if _, err := b.ledger.RequestStop(t.Context(), "a", ""); err != nil {
				t.Fatal(err)
			}
		}
		rec := exited(143)
		rec.EndCause = guestv1.EndCause_END_CAUSE_STOP
		b.leave(rec)
		if err := b.endAll(false); err != nil {
			t.Fatal(err)
		}
		if st := b.ended(); st.GetError() != want || st.GetErrorCode() != agboxv1.ErrorReason_SANDBOX_STOPPED_UNDER_EXEC.String() {
			t.Errorf("asked for: %t: %s, %q; want %q", asked, st.GetErrorCode(), st.GetError(), want)
		}
	}
}

// leave writes a record as the status file of exec "x".
func (b *bench) leave(rec *guestv1.ExecRecord) {
	b.t.Helper()
	b.leaveFor("x", rec)
}

func (b *bench) leaveFor(execID string, rec *guestv1.ExecRecord) {
	b.t.Helper()
	if b.left == nil {
		b.left = make(map[string]*guestv1.ExecRecord)
	}
	b.left[execID] = rec
	raw, err := rec.MarshalVT()
	if err != nil {
		b.t.Fatal(err)
	}
	dir, err := logs.OpenDir(b.install.SandboxLogs("a"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer dir.Close()
	if err := dir.WriteStatus(execID, raw, logs.StatusOptions{Owner: logs.KeepOwner}); err != nil {
		b.t.Fatal(err)
	}
}

// A supervisor may deny again and again that it knows an exec.
func TestAFloodOfDenialsStartsAnExecOnce(t *testing.T) {
	b := newBench(t)
	b.serve(&supervisor{boot: "boot1"}) // the link breaks in Start
	b.connect()
	b.create()
	<-b.lost
	fence := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "fence", Command: []string{"true"}}
	if _, err := b.ledger.AcceptExec(t.Context(), fence, "boot1"); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	s := &supervisor{
		boot: "boot1", known: map[string]*guestv1.ExecRecord{"fence": {ExecId: "fence", Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: "boot1"}},
		start: func(*guestv1.StartRequest) *guestv1.ExecRecord { <-gate; return exited(3) },
	}
	b.serve(s)
	b.connect()
	const flood = 3000
	for range flood {
		s.exits <- &guestv1.ExecRecord{ExecId: "x"}
	}
	s.exits <- &guestv1.ExecRecord{ExecId: "fence", Phase: guestv1.ExecPhase_EXEC_PHASE_EXITED, BootId: "boot1"}
	<-b.ledger.ExecDone("fence") // all denials before it have been handled
	if n := runtime.NumGoroutine(); n > flood/10 {
		t.Errorf("%d denials keep %d goroutines", flood, n)
	}
	close(gate)
	if st := b.ended(); st.GetExitCode() != 3 {
		t.Errorf("status %v", st)
	}
	if n := s.started(); n != 1 {
		t.Errorf("%d denials started the exec %d times", flood, n)
	}
}

func TestTimesThatAStatusClaimsAreBounded(t *testing.T) {
	b := newBench(t)
	b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
	b.connect()
	before := time.Now()
	b.create()
	forged := exited(0)
	forged.StartedAt = guestv1.New(before.Add(-1000 * time.Hour))
	forged.FinishedAt = guestv1.New(before.Add(1000 * time.Hour))
	b.leave(forged)
	if err := b.endAll(false); err != nil {
		t.Fatal(err)
	}
	st, now := b.ended(), time.Now()
	if from, to := st.GetStartedAt().AsTime(), st.GetFinishedAt().AsTime(); from.Before(before) || to.After(now) || to.Before(from) {
		t.Errorf("the exec ran from %v to %v, and the test from %v to %v", from, to, before, now)
	}
}

// endAll ends all execs of the sandbox.
func (b *bench) endAll(missing bool) error {
	sb, _ := b.ledger.Sandbox("a")
	return b.runner.EndAll(b.t.Context(), "a", sb.Execs, missing)
}

func TestEndAllLeavesWhatBeganLater(t *testing.T) {
	b := newBench(t)
	accept := func(id string) {
		t.Helper()
		if _, err := b.ledger.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: id, Command: []string{"true"}}, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	accept("old")
	sb, _ := b.ledger.Sandbox("a")
	accept("new")
	if err := b.runner.EndAll(t.Context(), "a", sb.Execs, false); err != nil {
		t.Fatal(err)
	}
	if now, _ := b.ledger.Sandbox("a"); len(now.Execs) != 1 || now.Execs["new"].ID != "new" {
		t.Errorf("%v runs, want the one that began after the look", now.Execs)
	}
}
