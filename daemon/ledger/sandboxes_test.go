package ledger

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// named fails the test unless the name leads to the sandbox with the id; an empty id means
// to none.
func named(t *testing.T, l *Ledger, name, id string) {
	t.Helper()
	if id == "" {
		_, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_SANDBOX, name)
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
		return
	}
	means(t, l, agboxv1.RefKind_REF_KIND_SANDBOX, name, id+" NAME")
}

func rename(t *testing.T, l *Ledger, id, name string) Sandbox {
	t.Helper()
	sb, err := l.Rename(t.Context(), id, name)
	if err != nil || sb.Name != name {
		t.Fatalf("the name is %q (%v), want %s", sb.Name, err, name)
	}
	return sb
}

func TestANewNameLeadsToTheSandboxAndTheOldOneIsFree(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	create(t, l, "aa", "old")
	before := rename(t, l, "aa", "new").LastSequence
	if again := rename(t, l, "aa", "new"); again.LastSequence != before {
		t.Error("a repeated request made another event")
	}
	named(t, l, "new", "aa")
	named(t, l, "old", "")
	create(t, l, "bb", "old")
	named(t, l, "old", "bb")
	closeDB()
	l, _ = open(t, dir)
	named(t, l, "new", "aa")
	named(t, l, "old", "bb")
	rename(t, l, "bb", "third")
	rename(t, l, "aa", "old")
	named(t, l, "old", "aa")
	gone(t, l, "aa")
	named(t, l, "old", "")
	create(t, l, "cc", "old")
}

func TestANameIsFreeOnceNothingOfTheSandboxRuns(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	create(t, l, "aa", "demo")
	if _, err := l.RequestDelete(t.Context(), "aa"); err != nil {
		t.Fatal(err)
	}
	_, err := l.Create(t.Context(), "bb", &agboxv1.CreateSpec{Image: "img", Name: "demo"})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	emit(t, l, "aa", agboxv1.EventType_SANDBOX_ENDED)
	named(t, l, "demo", "")
	stop()
	l, stop = open(t, dir)
	named(t, l, "demo", "")
	create(t, l, "bb", "demo")
	create(t, l, "cc", "other")
	stop()
	l, stop = open(t, dir)
	defer stop()
	named(t, l, "demo", "bb")
	_, err = l.Rename(t.Context(), "cc", "demo")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	emit(t, l, "aa", agboxv1.EventType_SANDBOX_DELETED)
	named(t, l, "demo", "bb")
}

func TestANameThatIsTakenAndASandboxThatGoesAreRefused(t *testing.T) {
	l := fresh(t)
	create(t, l, "aa", "first")
	create(t, l, "bb", "second")
	_, err := l.Rename(t.Context(), "bb", "first")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	_, err = l.Rename(t.Context(), "bb", "aa") // the id of another one
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	rename(t, l, "bb", "bb")                       // its own
	for _, name := range []string{"aa", "first"} { // an id that is a name, of one that has it too
		_, err = l.Create(t.Context(), "first", &agboxv1.CreateSpec{Image: "img", Name: name})
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	}
	create(t, l, "first", "") // clients that do not know names choose any id
	gone(t, l, "first")
	_, err = l.Rename(t.Context(), "nosuch", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	if _, err := l.RequestDelete(t.Context(), "aa"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Rename(t.Context(), "aa", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	emit(t, l, "aa", agboxv1.EventType_SANDBOX_DELETED)
	_, err = l.Rename(t.Context(), "aa", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	rename(t, l, "bb", "first")
}

func TestOfManySandboxesThatWantANameOneGetsIt(t *testing.T) {
	l := fresh(t)
	const callers = 32
	for i := range callers {
		create(t, l, fmt.Sprintf("sb%d", i), "")
	}
	var won int
	var mu sync.Mutex // guards won
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			_, err := l.Rename(t.Context(), fmt.Sprintf("sb%d", i), "n")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_NAME_EXISTS {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won != 1 {
		t.Errorf("%d sandboxes have the name", won)
	}
}

func restart(t *testing.T, l *Ledger, id string, now bool) Sandbox {
	t.Helper()
	sb, err := l.RequestRestart(t.Context(), id, now)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestARestartIsRememberedUntilItIsStarted(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	ready(t, l, "a")
	asked := restart(t, l, "a", false)
	if again := restart(t, l, "a", false); again.LastSequence != asked.LastSequence {
		t.Error("a repeated request made another event")
	}
	if hurried := restart(t, l, "a", true); !hurried.Now || !hurried.Restart {
		t.Errorf("after a request without delay: %+v", hurried.Record)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_STOPPED)
	closeDB()
	l, _ = open(t, dir)
	if sb, _ := l.Sandbox("a"); sb.State != machine.Stopped || !sb.Restart {
		t.Errorf("after a restart of the daemon: %+v", sb.Record)
	}
	if sb := emit(t, l, "a", agboxv1.EventType_SANDBOX_RESUME_REQUESTED); sb.State != machine.Pending || sb.Restart {
		t.Errorf("started again: %+v", sb.Record)
	}
}

func TestAStopCancelsARestart(t *testing.T) {
	l := fresh(t)
	for _, id := range []string{"stopping", "stopped"} {
		ready(t, l, id)
		restart(t, l, id, false)
		if id == "stopped" {
			emit(t, l, id, agboxv1.EventType_SANDBOX_STOPPED)
		}
		sb, err := l.RequestStop(t.Context(), id, "test")
		if err != nil || sb.Restart || sb.Want != machine.WantStopped {
			t.Errorf("%s: %+v, %v", id, sb.Record, err)
		}
		if id == "stopping" {
			sb = emit(t, l, id, agboxv1.EventType_SANDBOX_STOPPED)
		}
		if step := machine.Next(sb.Record, machine.Observation{}, machine.Rules{}, sb.CreatedAt); step.Do != machine.Rest {
			t.Errorf("%s: the next step is %s", id, step.Do)
		}
	}
}

func TestARestartOfWhatDoesNotRunOnlyStartsIt(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	if _, err := l.RequestStop(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	// One that is being stopped is started afterwards.
	if sb := restart(t, l, "a", false); !sb.Restart || sb.State != machine.Ready {
		t.Errorf("while it is being stopped: %+v", sb.Record)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_STOPPED)
	if _, err := l.RequestStop(t.Context(), "a", "test"); err != nil {
		t.Fatal(err)
	}
	if sb := restart(t, l, "a", false); sb.State != machine.Pending || sb.Restart {
		t.Errorf("stopped: %+v", sb.Record)
	}
	gone(t, l, "a")
	_, err := l.RequestRestart(t.Context(), "a", false)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	_, err = l.RequestRestart(t.Context(), "never", false)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

func TestARepeatedCreateWithItsKeyGetsTheSameAnswer(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	spec := &agboxv1.CreateSpec{Image: "img", Name: "n"}
	key := RequestKey{Key: "k", Digest: []byte("d")}
	first, err := l.CreateKeyed(t.Context(), "a", spec, key)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sb, again, err := l.RepeatedCreate(t.Context(), "a", key)
		if err != nil || !again || sb.Nonce != first.Nonce {
			t.Errorf("the same request: %+v, again %v, error %v", sb.Record, again, err)
		}
		// A client of another version may encode the same request in another way.
		recoded := RequestKey{Key: "k", Digest: []byte("other")}
		if _, again, err := l.RepeatedCreate(t.Context(), "a", recoded); again || err != nil {
			t.Errorf("another digest: again %v, error %v", again, err)
		}
		if sb, err := l.CreateKeyed(t.Context(), "a", spec, recoded); err != nil || sb.LastSequence != first.LastSequence {
			t.Errorf("the same spec: %+v, error %v", sb.Record, err)
		}
		_, err = l.CreateKeyed(t.Context(), "a", &agboxv1.CreateSpec{Image: "other"}, recoded)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		_, err = l.CreateKeyed(t.Context(), "b", &agboxv1.CreateSpec{Image: "img"}, key)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		_, _, err = l.RepeatedCreate(t.Context(), "b", key)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		for _, other := range []RequestKey{{}, {Key: "k2", Digest: []byte("d")}} {
			_, err = l.CreateKeyed(t.Context(), "a", spec, other)
			wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
		}
		closeDB()
		l, closeDB = open(t, dir)
	}
	gone(t, l, "a")
	if sb, again, err := l.RepeatedCreate(t.Context(), "a", key); err != nil || !again || !sb.Over() {
		t.Errorf("after the deletion: %+v, again %v, error %v", sb.Record, again, err)
	}
	_, err = l.CreateKeyed(t.Context(), "a", spec, key)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
}

func TestARepeatedExecWithItsKeyIsAcceptedOnce(t *testing.T) {
	for _, key := range []string{"k", "x"} { // the second is the id itself, as clients choose it
		t.Run(key, func(t *testing.T) { repeatExec(t, key) })
	}
}

func repeatExec(t *testing.T, key string) {
	l := fresh(t)
	ready(t, l, "a")
	req := request("x")
	req.RequestKey = key
	for want := range 2 {
		known, err := l.RepeatedExec(t.Context(), req)
		if err != nil || known != (want == 1) {
			t.Errorf("known %v, error %v", known, err)
		}
		again, err := l.AcceptExec(t.Context(), req, "boot")
		if err != nil || again != (want == 1) {
			t.Errorf("again %v, error %v", again, err)
		}
	}
	reused := agboxv1.ErrorReason_REQUEST_KEY_REUSED
	if key == "x" {
		reused = agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS
	}
	other := proto.CloneOf(req)
	other.Command = []string{"false"}
	_, err := l.AcceptExec(t.Context(), other, "boot")
	wantReason(t, err, reused)
	if known, err := l.RepeatedExec(t.Context(), other); known || err != nil {
		t.Errorf("another command: known %v, error %v", known, err)
	}
	other = proto.CloneOf(req)
	other.ExecId = "y"
	_, err = l.AcceptExec(t.Context(), other, "boot")
	wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
	_, err = l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS)
}

func TestAnIDThatIsNoKeyIsFreeAsAKey(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	if _, err := l.AcceptExec(t.Context(), request("x"), "boot"); err != nil {
		t.Fatal(err)
	}
	req := request("y")
	req.RequestKey = "x"
	if again, err := l.AcceptExec(t.Context(), req, "boot"); err != nil || again {
		t.Errorf("again %v, error %v", again, err)
	}
}
