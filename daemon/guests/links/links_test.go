package links_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noReports ignores all reports: there are no execs.
type noReports struct{}

func (noReports) Report(context.Context, *links.Link, *guestv1.ExecRecord) {}
func (noReports) Missed(context.Context, *links.Link, string)              {}

// supervisor answers Hello and confirms that it reports exits. asked, if set, is called
// before that.
type supervisor struct {
	asked       func()
	logsDeleted bool
}

func (s supervisor) methods() rpc.Methods {
	return rpc.Methods{
		"guest.v1.Supervisor/Hello": rpc.Unary(s.Hello),
		"guest.v1.Supervisor/Watch": rpc.Stream(s.Watch),
	}
}

func (s supervisor) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: 1, BootId: "boot", LogsDeleted: s.logsDeleted}, nil
}

func (s supervisor) Watch(ctx context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
	if s.asked != nil {
		s.asked()
	}
	if err := send(&guestv1.WatchResponse{Watching: true}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func wantTampered(t *testing.T, err error) {
	t.Helper()
	f := fault.Of(err)
	if f == nil || f.Reason != agboxv1.ErrorReason_SUPERVISOR_TAMPERED || f.Metadata["sandbox_id"] != "a" {
		t.Errorf("the error is %v", err)
	}
}

func TestASupervisorThatBreaksTheProtocolAfterItsGreetingIsTampered(t *testing.T) {
	b := guesttest.New(t)
	b.Links.SendReports(noReports{})
	lis, err := net.Listen("unix", filepath.Join(b.Install.GuestLink("a"), paths.LinkSocket))
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer lis.Close()
	serving.Go(func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 4096))
		const greeting, toNothing = "\x00\x00\x00\x0a\x00\x00\x00\x01\x02\x00" + "\x12\x08\x08\x01\x1a\x04boot", "\x00\x00\x00\x00\x00\x00\x00\x63\x02\x00"
		_, _ = conn.Write([]byte(greeting + toNothing))
		_, _ = io.Copy(io.Discard, conn) // until the other side closes
	})
	wantTampered(t, b.Links.Connect(t.Context(), "a"))
	b.Links.Close() // waits for the listener
	if len(b.Lost) > 0 {
		t.Error("a link that was never there is lost, so it is made again without a pause")
	}
	wantBroken(t, b, "The sandbox's supervisor can no longer be trusted: it broke the protocol. Save what you need from its logs, then remove the sandbox. It happened 0s ago.")
	b.Links.Drop("a") // as at a start
	wantBroken(t, b, "")
}

// wantBroken compares what is said of the links that the supervisor of sandbox "a" has broken.
func wantBroken(t *testing.T, b *guesttest.Bench, want string) {
	t.Helper()
	got := ""
	if err := b.Links.Broken("a"); err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("of broken links it says %q, want %q", got, want)
	}
}

func TestLinksThatASupervisorBreaksAreCounted(t *testing.T) {
	b := guesttest.New(t)
	now := time.Now()
	l := links.New(t.Context(), links.Options{
		Ledger: b.Ledger, Paths: b.Install, Log: b.Log, Now: func() time.Time { return now },
		FirstPID: func(context.Context, string) (int, error) { return os.Getpid(), nil }, Lost: func(id string) { b.Lost <- id },
	})
	l.SendReports(noReports{})
	b.Links.Close()
	b.Links = l
	t.Cleanup(l.Close)
	methods := supervisor{}.methods()
	methods["guest.v1.Supervisor/Watch"] = rpc.Stream(func(context.Context, *guestv1.WatchRequest, func(*guestv1.WatchResponse) error) error { return nil })
	_, end := b.Serve(methods)
	if err := l.Connect(t.Context(), "a"); !errdefs.IsUnavailable(err) {
		t.Errorf("Connect to a supervisor that hangs up gives %v", err)
	}
	const hangsUp = "The sandbox's supervisor does not answer: the connection was lost. Try again; if that does not help, stop and start the sandbox."
	wantBroken(t, b, hangsUp+" It happened 0s ago.")
	end()
	cut, end := b.Serve(supervisor{}.methods())
	b.Connect()
	wantBroken(t, b, "") // it is linked
	cut()
	<-b.Lost
	wantBroken(t, b, "") // as at the end of a container
	end()

	methods["guest.v1.Supervisor/Watch"] = rpc.Stream(func(_ context.Context, _ *guestv1.WatchRequest, send func(*guestv1.WatchResponse) error) error {
		return errors.Join(send(&guestv1.WatchResponse{Watching: true}), send(&guestv1.WatchResponse{Exec: &guestv1.ExecRecord{ExecId: "../x"}}))
	})
	b.Serve(methods)
	for range 3 {
		now = now.Add(time.Minute)
		b.Connect() // the link is made, and broken after that
		<-b.Lost
	}
	wantBroken(t, b, "The sandbox's supervisor can no longer be trusted: it sent an exec id that is not valid. Save what you need from its logs, then remove the sandbox. "+
		"It happened 3 times, the first time 2m0s ago and the last time 0s ago.")
}

func TestNobodyWaitsForASupervisorThatCannotBeTrusted(t *testing.T) {
	links.SetWaitAtMost(t, time.Hour)
	b := guesttest.New(t)
	b.Links.SendReports(noReports{})
	socket := filepath.Join(b.Install.GuestLink("a"), paths.LinkSocket)
	if err := os.Symlink("/run/docker.sock", socket); err != nil {
		t.Fatal(err)
	}
	// This stands for the loop: it connects when asked to.
	var trying sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer trying.Wait()
	defer stop()
	trying.Go(func() {
		for {
			select {
			case <-b.Lost:
				_ = b.Links.Connect(ctx, "a") // Wait returns the error
			case <-ctx.Done():
				return
			}
		}
	})
	wait := func() <-chan error {
		ended := make(chan error, 1)
		trying.Go(func() {
			_, err := b.Links.Wait(t.Context(), "a")
			ended <- err
		})
		return ended
	}
	early := wait()
	wantTampered(t, b.Links.Connect(t.Context(), "a"))
	wantTampered(t, <-early)
	wantTampered(t, <-wait())

	// The supervisor's own socket is restored.
	b.Serve(supervisor{}.methods())
	if err := <-wait(); err != nil || !b.Links.Connected("a") {
		t.Errorf("Wait gives %v", err)
	}
}

// waiting starts a wait for the link of sandbox "a". The function that it returns waits
// for the result.
func waiting(t *testing.T, b *guesttest.Bench) func() (*links.Link, error) {
	var lk *links.Link
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lk, err = b.Links.Wait(t.Context(), "a")
	}()
	return func() (*links.Link, error) { <-done; return lk, err }
}

func TestAWaitEndsWithTheLinkThatIsMadeMeanwhile(t *testing.T) {
	b := guesttest.New(t)
	end := waiting(t, b)
	var tooEarly error
	b.Serve(supervisor{asked: func() { _, tooEarly = b.Links.Get("a") }}.methods())
	b.Connect()
	lk, err := end()
	if err != nil || lk.SandboxID != "a" || lk.Boot().GetUser() != "agent" {
		t.Errorf("the wait gives %v, %v", lk, err)
	}
	if !errdefs.IsUnavailable(tooEarly) {
		t.Errorf("before the supervisor reports exits the link is used: %v", tooEarly)
	}
}

// TestNobodyGetsALinkBeforeItsSupervisorIsTold: a command that waited for it would run without what the
// sandbox that was made ahead got with its owner.
func TestNobodyGetsALinkBeforeItsSupervisorIsTold(t *testing.T) {
	b := guesttest.New(t)
	methods := supervisor{}.methods()
	methods["guest.v1.Supervisor/Configure"] = rpc.Unary(func(context.Context, *guestv1.ConfigureRequest) (*guestv1.ConfigureResponse, error) {
		return new(guestv1.ConfigureResponse), nil
	})
	b.Serve(methods)
	taken(t, b)
	if err := os.Rename(b.Install.Guest("a"), b.Install.Guest("taken")); err != nil {
		t.Fatal(err)
	}
	if err := b.Links.Connect(t.Context(), "taken"); err != nil {
		t.Fatal(err)
	}
	links.SetWaitAtMost(t, time.Millisecond)
	if _, err := b.Links.Wait(t.Context(), "taken"); !errdefs.IsUnavailable(err) || b.Links.Connected("taken") {
		t.Errorf("its link is given away before its supervisor is told: %v", err)
	}
	links.SetWaitAtMost(t, time.Hour)
	waited := make(chan string)
	go func() {
		lk, err := b.Links.Wait(t.Context(), "taken")
		if err != nil {
			waited <- err.Error()
			return
		}
		waited <- lk.Boot().GetUser()
	}()
	if err := b.Links.Connect(t.Context(), "taken"); err != nil {
		t.Errorf("it is linked, and a second call says %v", err)
	}
	if err := b.Links.Configure(t.Context(), "taken", &guestv1.BootConfig{User: "owner"}, nil, ""); err != nil {
		t.Fatal(err)
	}
	if got := <-waited; got != "owner" || !b.Links.Connected("taken") {
		t.Errorf("a call that waited finds the user %q", got)
	}
}

// taken makes a READY sandbox "taken" that was made ahead and that somebody has.
func taken(t *testing.T, b *guesttest.Bench) {
	t.Helper()
	spec := &agboxv1.CreateSpec{Image: "img"}
	pool, err := b.Ledger.SetPool(t.Context(), "stack", 1, spec)
	sb := ledger.Sandbox{}
	if err == nil {
		sb, err = b.Ledger.CreateAhead(t.Context(), "taken", pool.ID, spec)
	}
	ready := func() {
		if err == nil {
			sb, err = b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY})
		}
	}
	if ready(); err == nil {
		sb, err = b.Ledger.Take(t.Context(), "taken", spec, ledger.RequestKey{})
	}
	if ready(); err != nil {
		t.Fatal(err)
	}
}

func TestNobodyWaitsForALinkInASandboxThatIsNotReady(t *testing.T) {
	b := guesttest.New(t)
	end := waiting(t, b)
	if _, err := b.Ledger.RequestStop(t.Context(), "a", "asked for"); err != nil {
		t.Fatal(err)
	}
	sb, _ := b.Ledger.Sandbox("a")
	if _, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_STOPPED}); err != nil {
		t.Fatal(err)
	}
	if _, err := end(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the wait gives %v", err)
	}
}

func TestAnExecInADeletedSandboxIsRefusedByItsName(t *testing.T) {
	b := guesttest.New(t)
	end := waiting(t, b)
	sb, err := b.Ledger.RequestDelete(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED}); err != nil {
		t.Fatal(err)
	}
	_, early := end()
	_, late := b.Links.Wait(t.Context(), "a")
	for _, err := range []error{early, late} {
		if f := fault.Of(err); f == nil || f.Reason != agboxv1.ErrorReason_SANDBOX_NOT_READY || f.Metadata["sandbox_id"] != "a" {
			t.Errorf("the wait gives %v", err)
		}
	}
	if want := "Sandbox a is deleted: create another one."; late.Error() != want {
		t.Errorf("it says %q, want %q", late, want)
	}
	if _, err := b.Links.Wait(t.Context(), "b"); fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_NOT_FOUND {
		t.Errorf("the wait for a sandbox that never was gives %v", err)
	}
}

func TestALogFolderThatWasRemovedUnderTheSandboxIsNoticed(t *testing.T) {
	remake := func(b *guesttest.Bench) error { return os.Mkdir(b.Install.SandboxLogs("a"), 0o700) }
	for name, c := range map[string]struct {
		then    func(*guesttest.Bench) error
		deleted bool
	}{
		"removed":                           {then: func(*guesttest.Bench) error { return nil }},
		"replaced":                          {then: remake},
		"replaced before the link was made": {then: remake, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := guesttest.New(t)
			b.Serve(supervisor{logsDeleted: c.deleted}.methods())
			folder := b.Install.SandboxLogs("a")
			if !c.deleted {
				b.Connect()
				if err := b.Links.CheckLogs("a"); err != nil {
					t.Fatalf("before that, it says %v", err)
				}
			}
			if err := os.Rename(folder, folder+".old"); err != nil { // keeps its inode from being used again
				t.Fatal(err)
			}
			if err := c.then(b); err != nil {
				t.Fatal(err)
			}
			if c.deleted {
				b.Connect()
			}
			f := fault.Of(b.Links.CheckLogs("a"))
			if f == nil || f.Reason != agboxv1.ErrorReason_HOST_PATH_UNUSABLE || !errdefs.IsFailedPrecondition(f) || f.Metadata["sandbox_id"] != "a" {
				t.Fatalf("it says %v", f)
			}
			want := "The log folder " + folder + " was removed or replaced while sandbox a ran, so no command can run in it: stop and start the sandbox, which makes the folder again."
			if f.Message != want {
				t.Errorf("it says %q, want %q", f.Message, want)
			}
		})
	}
}

func TestAWaitEndsIfTheLoopSaysThatNobodyCanMakeTheLink(t *testing.T) {
	links.SetWaitAtMost(t, time.Hour)
	b := guesttest.New(t)
	why := fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE, "Its socket was removed.")
	for range 2 { // the second wait has the loop try again
		end := waiting(t, b)
		done := make(chan error, 1)
		go func() {
			_, err := end()
			done <- err
		}()
		b.Links.Fail("a", why)
		select {
		case err := <-done:
			if fault.Of(err) != why {
				t.Errorf("the wait gives %v", err)
			}
		case <-b.Lost:
			b.Links.Fail("a", why)
			if err := <-done; fault.Of(err) != why {
				t.Errorf("the wait gives %v", err)
			}
		}
	}
}

func TestNothingIsKeptOfASandboxThatWasNeverLinked(t *testing.T) {
	b := guesttest.New(t)
	end := waiting(t, b)
	if err := b.Links.Connect(t.Context(), "a"); err == nil {
		t.Fatal("nobody listens, and there is a link")
	}
	sb, err := b.Ledger.RequestDelete(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED}); err != nil {
		t.Fatal(err)
	}
	if _, err := end(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("the wait gives %v", err)
	}
	b.Links.Drop("a") // as the loop does
	if _, err := b.Links.Wait(t.Context(), "a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a wait after the deletion gives %v", err)
	}
	if n := b.Links.Kept(); n != 0 {
		t.Errorf("%d entries are kept", n)
	}
}

func TestStopWaitingEndsWaitsAndLeavesLinks(t *testing.T) {
	b := guesttest.New(t)
	end := waiting(t, b)
	b.Links.StopWaiting()
	if _, err := end(); fault.ReasonOf(err) != agboxv1.ErrorReason_DAEMON_STOPPING {
		t.Errorf("the wait gives %v", err)
	}
	b.Serve(supervisor{}.methods())
	b.Connect()
	if _, err := b.Links.Wait(t.Context(), "a"); err != nil {
		t.Errorf("a link that is there is not given: %v", err)
	}
}

func TestCloseEndsWorkAndWaitsForIt(t *testing.T) {
	b := guesttest.New(t)
	b.Serve(supervisor{}.methods())
	b.Connect()
	ended := false
	if !b.Links.Go(func(ctx context.Context) { <-ctx.Done(); ended = true }) {
		t.Fatal("work is refused")
	}
	b.Links.Close()
	if !ended {
		t.Error("Close did not wait")
	}
	if b.Links.Go(func(context.Context) { t.Error("it was run") }) {
		t.Error("work is accepted after Close")
	}
	if err := b.Links.Connect(t.Context(), "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect after Close gives %v", err)
	}
}

// TestADiscardedLinkAsksForNoOther: a supervisor that is linked and refuses what it must be told costs no more
// than one that hangs up.
func TestADiscardedLinkAsksForNoOther(t *testing.T) {
	b := guesttest.New(t)
	b.Links.SendReports(noReports{})
	b.Serve(supervisor{}.methods())
	made := 0
	var err error
	for ; made < 100 && err == nil; made++ {
		err = b.Links.Connect(t.Context(), "a")
		b.Links.Discard("a")
	}
	if made > 20 || !errdefs.IsUnavailable(err) || b.Links.Connected("a") {
		t.Errorf("%d links within a moment, then %v", made, err)
	}
	b.Links.Close() // waits for the listeners
	if len(b.Lost) > 0 {
		t.Error("a discarded link is lost, so it is made again without a pause")
	}
}

func TestASupervisorThatHangsUpAgainAndAgainIsLinkedOnlyAfterAPause(t *testing.T) {
	b := guesttest.New(t)
	now := time.Now()
	lost := make(chan struct{}, 1)
	l := links.New(t.Context(), links.Options{
		Ledger: b.Ledger, Paths: b.Install, Log: b.Log, Now: func() time.Time { return now },
		FirstPID: func(context.Context, string) (int, error) { return os.Getpid(), nil }, Lost: func(string) { lost <- struct{}{} },
	})
	l.SendReports(noReports{})
	defer l.Close()
	b.Serve(supervisor{}.methods())
	link := func() error {
		err := l.Connect(t.Context(), "a")
		if lk, err := l.Get("a"); err == nil {
			lk.Break()
			<-lost
		}
		return err
	}
	var made int
	var err error
	for made = 0; made < 1000 && err == nil; made++ {
		err = link()
	}
	if made > 20 || !errdefs.IsUnavailable(err) {
		t.Errorf("%d links within a moment, then %v", made, err)
	}
	now = now.Add(11 * time.Second)
	if err := link(); err != nil {
		t.Errorf("after a pause Connect gives %v", err)
	}
}
