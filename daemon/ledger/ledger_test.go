package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens the ledger of a folder. The function that it returns closes it.
func open(t testing.TB, dir string) (*Ledger, func()) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "ids.db"), Sentinel: filepath.Join(dir, "install-id")})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), db, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	closeDB := sync.OnceFunc(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closeDB)
	return l, closeDB
}

func fresh(t testing.TB) *Ledger {
	l, _ := open(t, t.TempDir())
	return l
}

func create(t testing.TB, l *Ledger, id, name string) Sandbox {
	t.Helper()
	sb, err := l.Create(t.Context(), id, &agboxv1.CreateSpec{Image: "img", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func emit(t testing.TB, l *Ledger, id string, typ agboxv1.EventType) Sandbox {
	t.Helper()
	sb, _ := l.Sandbox(id)
	after, err := l.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: typ})
	if err != nil {
		t.Fatal(err)
	}
	return after
}

// ready makes a READY sandbox.
func ready(t testing.TB, l *Ledger, id string) {
	t.Helper()
	create(t, l, id, "")
	emit(t, l, id, agboxv1.EventType_SANDBOX_READY)
}

// gone makes a sandbox DELETED.
func gone(t *testing.T, l *Ledger, id string) {
	t.Helper()
	if _, err := l.RequestDelete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	emit(t, l, id, agboxv1.EventType_SANDBOX_DELETED)
}

func wantReason(t *testing.T, err error, reason agboxv1.ErrorReason) {
	t.Helper()
	if err == nil || fault.ReasonOf(err) != reason {
		t.Errorf("error %v has reason %s, want %s", err, fault.ReasonOf(err), reason)
	}
}

func request(id string) *agboxv1.CreateExecRequest {
	return &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: id, Command: []string{"true"}}
}

func TestATakenIDIsRefusedAlsoForTheSameSpec(t *testing.T) {
	l := fresh(t)
	create(t, l, "a", "n")
	for _, image := range []string{"img", "other"} {
		_, err := l.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: image, Name: "n"})
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
	}
}

func TestNameIsFreeAgainAfterRemovalAndTheIDNever(t *testing.T) {
	l := fresh(t)
	create(t, l, "a", "n")
	_, err := l.Create(t.Context(), "b", &agboxv1.CreateSpec{Image: "img", Name: "n"})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	gone(t, l, "a")
	create(t, l, "c", "n")
	_, err = l.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: "img", Name: "n"})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
}

func TestOfManyWhoWantANameOneGetsIt(t *testing.T) {
	l := fresh(t)
	const callers = 64
	var won, lost int
	var mu sync.Mutex // guards won and lost
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			_, err := l.Create(t.Context(), fmt.Sprintf("sb%d", i), &agboxv1.CreateSpec{Image: "img", Name: "n"})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case fault.ReasonOf(err) == agboxv1.ErrorReason_SANDBOX_NAME_EXISTS:
				lost++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won != 1 || lost != callers-1 {
		t.Errorf("%d won and %d lost", won, lost)
	}
}

func TestDecisionOnAnOldRecordIsDropped(t *testing.T) {
	l := fresh(t)
	seen := create(t, l, "a", "")
	if _, err := l.RequestDelete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	after, err := l.Emit(t.Context(), seen.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY})
	if err != nil || after.State != machine.Deleting {
		t.Errorf("state %s, error %v; the request to delete must win", after.State, err)
	}
}

func TestExecLifeIsRecordedOnceAndSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	ready(t, l, "a")
	if again, err := l.AcceptExec(t.Context(), request("x"), "boot"); err != nil || again {
		t.Fatalf("again %v, error %v", again, err)
	}
	_, err := l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS)

	done := l.ExecDone("x")
	select {
	case <-done:
		t.Error("the exec is done before it ended")
	default:
	}
	closeDB()

	l, _ = open(t, dir)
	sb, _ := l.Sandbox("a")
	if got := sb.Execs["x"]; got.BootID != "boot" || sb.Inherited != sb.LastSequence {
		t.Errorf("after reopening: exec %+v, inherited %d of %d", got, sb.Inherited, sb.LastSequence)
	}
	for _, code := range []int32{7, 8} { // the second one must change nothing
		end := &agboxv1.ExecEventDetails{ExecId: "x", ExitCode: code, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}
		if err := l.EndExec(t.Context(), "a", end); err != nil {
			t.Fatal(err)
		}
	}
	<-l.ExecDone("x")
	status, err := l.Exec(t.Context(), "a", "x")
	if err != nil || status.GetExitCode() != 7 || status.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("status %v, error %v", status, err)
	}
}

func TestAWishThatMakesNoSenseIsRefusedInWords(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	if _, err := l.RequestStop(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	_, starting := l.RequestResume(t.Context(), "a")
	ready(t, l, "b")
	emit(t, l, "b", agboxv1.EventType_SANDBOX_FAILED)
	_, stopping := l.RequestStop(t.Context(), "b", "")
	ready(t, l, "c")
	if _, err := l.RequestDelete(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	_, stoppingDeleting := l.RequestStop(t.Context(), "c", "")
	emit(t, l, "c", agboxv1.EventType_SANDBOX_DELETED)
	_, stoppingDeleted := l.RequestStop(t.Context(), "c", "")
	_, startingDeleted := l.RequestResume(t.Context(), "c")
	for want, err := range map[string]error{
		"Sandbox a is ready and cannot be started now: wait until it is stopped, and start it then.": starting,
		"Sandbox b is failed and cannot be stopped now: nothing of it runs.":                         stopping,
		"Sandbox c is being deleted and cannot be stopped now: its deletion ends what runs in it.":   stoppingDeleting,
		"Sandbox c is deleted and cannot be stopped now: nothing of it runs.":                        stoppingDeleted,
		"Sandbox c is deleted and cannot be started now: create another one.":                        startingDeleted,
	} {
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
		if err.Error() != want {
			t.Errorf("it says %q, want %q", err, want)
		}
	}
}

func TestADeletedSandboxIsDeletedAgainAndNothingElse(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	gone(t, l, "a")
	before, err := l.Past(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	after, err := l.RequestDelete(t.Context(), "a")
	if err != nil || !after.Over() || after.LastSequence != before.LastSequence {
		t.Errorf("RequestDelete gives %+v, %v", after.Record, err)
	}
	_, err = l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_READY)
	if want := "Sandbox a is deleted: create another one."; err == nil || err.Error() != want {
		t.Errorf("AcceptExec says %v, want %q", err, want)
	}
	_, err = l.RequestDelete(t.Context(), "b")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

func TestExecNeedsAReadySandbox(t *testing.T) {
	l := fresh(t)
	_, err := l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	create(t, l, "a", "")
	_, err = l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_READY)
	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	if _, err := l.RequestStop(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	_, err = l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_READY)
	// A refused request has no effect: the id is still free.
	ready(t, l, "b")
	fine := request("x")
	fine.SandboxId = "b"
	if _, err := l.AcceptExec(t.Context(), fine, "boot"); err != nil {
		t.Error(err)
	}
}

func TestANameOfARunningExecIsTaken(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	req := request("xa1")
	req.Name = "build"
	if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
		t.Fatal(err)
	}
	taken := request("xc")
	taken.Name = "build"
	_, err := l.AcceptExec(t.Context(), taken, "boot")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_NAME_EXISTS)
}

func TestANameOfALostExecIsTakenWhileItMayReturn(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	for _, mayReturn := range []bool{false, true} {
		req := request(fmt.Sprintf("lost-%t", mayReturn))
		req.Name = "build"
		if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{
			ExecId: req.GetExecId(), ExecState: agboxv1.ExecState_EXEC_STATE_FAILED,
			ErrorCode: agboxv1.ErrorReason_EXEC_LOST.String(), MayReturn: mayReturn,
		}); err != nil {
			t.Fatal(err)
		}
	}
	taken := request("xc")
	taken.Name = "build"
	_, err := l.AcceptExec(t.Context(), taken, "boot")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_NAME_EXISTS)
}

func TestStreamsStartWithoutAGapOrSaySo(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a") // two events
	for after, fine := range map[uint64]bool{0: true, 1: true, 2: true, 3: false} {
		_, err := l.OpenEvents(t.Context(), "a", after)
		if (err == nil) != fine || err != nil && !errdefs.IsOutOfRange(err) {
			t.Errorf("after %d: %v", after, err)
		}
	}
	if _, err := l.OpenAllEvents(t.Context(), 99); !errdefs.IsOutOfRange(err) {
		t.Errorf("position 99: %v", err)
	}
}

func TestFollowersSeeEveryEventInOrder(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	const execs = 50
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen []uint64
	var follower sync.WaitGroup
	follower.Go(func() {
		for at := uint64(0); len(seen) < 2+2*execs; {
			changed := l.Changed("a")
			page, err := l.Events(ctx, "a", at, 7)
			if err != nil {
				t.Error(err)
				return
			}
			for _, ev := range page.Records {
				seen = append(seen, ev.GetSequence())
			}
			if at = page.Next; !page.More && len(seen) < 2+2*execs {
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	var callers sync.WaitGroup
	for i := range execs {
		callers.Go(func() {
			id := fmt.Sprintf("x%d", i)
			_, err := l.AcceptExec(ctx, request(id), "boot")
			err = errors.Join(err, l.EndExec(ctx, "a", &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	follower.Wait()
	for i, sequence := range seen {
		if sequence != uint64(i+1) {
			t.Fatalf("event %d has sequence %d", i+1, sequence)
		}
	}
	if len(seen) != 2+2*execs {
		t.Errorf("saw %d events", len(seen))
	}
}
