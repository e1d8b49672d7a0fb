package ledger

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func mainOf(sandboxID, execID string) *MainExec {
	return &MainExec{
		Request: &agboxv1.CreateExecRequest{SandboxId: sandboxID, ExecId: execID, Name: MainName, Command: []string{"serve"}},
		BootID:  "boot",
	}
}

func TestASandboxIsReadyTogetherWithTheRecordOfItsCommand(t *testing.T) {
	l := fresh(t)
	sb, err := l.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: "img"})
	if err != nil {
		t.Fatal(err)
	}
	isReady := &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY}
	known, _, err := l.AcceptMain(t.Context(), sb.Record, isReady, mainOf("a", "main-a"))
	now, _ := l.Sandbox("a")
	if err != nil || !known || now.State != machine.Ready || !now.Execs["main-a"].Main || now.InUse() {
		t.Fatalf("known %v, record %+v, error %v", known, now.Record, err)
	}
	// Repeated, as after a crash between the commit and the next step: nothing happens
	// twice.
	known, _, err = l.AcceptMain(t.Context(), now.Record, nil, mainOf("a", "main-a"))
	if again, _ := l.Sandbox("a"); err != nil || !known || again.LastSequence != now.LastSequence {
		t.Errorf("again: known %v, %d events instead of %d, error %v", known, again.LastSequence, now.LastSequence, err)
	}
	// The record has changed since: nothing happens.
	known, taken, err := l.AcceptMain(t.Context(), sb.Record, isReady, mainOf("a", "main-a-2"))
	if err != nil || known || taken {
		t.Errorf("out of date: known %v, taken %v, error %v", known, taken, err)
	}
	end := &agboxv1.ExecEventDetails{ExecId: "main-a", ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}
	if err := l.EndExec(t.Context(), "a", end); err != nil {
		t.Fatal(err)
	}
	status, err := l.Exec(t.Context(), "a", "main-a")
	if err != nil || !status.GetMain() || status.GetName() != "main" || status.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("status %v, error %v", status, err)
	}
}

func TestACommandWhoseIDIsTakenKeepsNoSandboxFromBeingReady(t *testing.T) {
	l := fresh(t)
	ready(t, l, "b")
	req := request("main-a")
	req.SandboxId = "b"
	if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
		t.Fatal(err)
	}
	sb, err := l.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: "img"})
	if err != nil {
		t.Fatal(err)
	}
	known, taken, err := l.AcceptMain(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY}, mainOf("a", "main-a"))
	if now, _ := l.Sandbox("a"); err != nil || known || !taken || now.State != machine.Ready || len(now.Execs) != 0 {
		t.Errorf("known %v, taken %v, record %+v, error %v", known, taken, now.Record, err)
	}
}

func TestExecsAreFoundWithinTheirSandbox(t *testing.T) {
	l := fresh(t)
	for _, id := range []string{"a", "b"} {
		ready(t, l, id)
		sb, _ := l.Sandbox(id)
		if _, _, err := l.AcceptMain(t.Context(), sb.Record, nil, mainOf(id, "main-"+id)); err != nil {
			t.Fatal(err)
		}
	}
	named := func(id, name string) {
		req := request(id)
		req.Name = name
		if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
			t.Fatal(err)
		}
	}
	end := func(id string) {
		if err := l.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
	}
	finds := func(ref string, want ...string) {
		t.Helper()
		means(t, l, agboxv1.RefKind_REF_KIND_EXEC, ref, want...)
	}
	fails := func(ref string, reason agboxv1.ErrorReason) {
		t.Helper()
		_, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_EXEC, ref)
		wantReason(t, err, reason)
	}
	named("xz1", "build")
	end("xz1")
	named("xa2", "build")
	end("xa2")
	finds("a/build", "xa2 NEWEST") // the newest, although its id comes first
	named("ya1", "pair")
	end("ya1")
	named("yz2", "pair")
	end("yz2")
	finds("a/pair", "yz2 NEWEST") // the newest
	named("xb3", "build")
	finds("a/build", "xb3 NAME") // the running one
	finds("a/xz1", "xz1 ID")
	finds("a/xz", "xz1 PREFIX")
	finds("a/main", "main-a NAME")
	finds("b/main", "main-b NAME")
	end("main-a")
	finds("a/main", "main-a NAME")
	fails("b/build", agboxv1.ErrorReason_EXEC_NOT_FOUND)
	fails("b/main-a", agboxv1.ErrorReason_EXEC_NOT_FOUND)
	finds("a/x", "xa2 PREFIX", "xb3 PREFIX", "xz1 PREFIX")
	fails("c/main", agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	fails("build/", agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

// TestAPageOfExecsBeginsAfterOneOfTheSandbox, also if retention has removed that since.
func TestAPageOfExecsBeginsAfterOneOfTheSandbox(t *testing.T) {
	l := fresh(t)
	for id, sandbox := range map[string]string{"x1": "a", "x2": "a", "y": "b"} {
		if _, exists := l.Sandbox(sandbox); !exists {
			ready(t, l, sandbox)
		}
		req := request(id)
		req.SandboxId = sandbox
		if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.EndExec(t.Context(), sandbox, &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range []string{"y", "x", "made-up"} {
		_, err := l.Execs(t.Context(), "a", token, 9)
		wantReason(t, err, agboxv1.ErrorReason_INVALID_REQUEST)
	}
	if err := l.Forget(t.Context(), "a", []machine.TrimPart{{ExecID: "x1"}}); err != nil {
		t.Fatal(err)
	}
	if page, err := l.Execs(t.Context(), "a", "x1", 9); err != nil || len(page) != 1 || page[0].GetExecId() != "x2" {
		t.Errorf("after one that was removed: %v, %v", page, err)
	}
}

// TestAnEndedExecIsSearchedForOnce: a search looks at all sandboxes whose records are kept.
func TestAnEndedExecIsSearchedForOnce(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	longAgo(t, l, "a", 2)
	longAgo(t, l, "b", 1)
	find := func(id, want string, searches uint64) {
		t.Helper()
		before := l.execs.searches.Load()
		got, err := l.FindExec(t.Context(), id)
		if n := l.execs.searches.Load() - before; got != want || n != searches || (want == "") != errdefs.IsNotFound(err) {
			t.Errorf("exec %s is in %q, %v, after %d searches; want %q after %d", id, got, err, n, want, searches)
		}
	}
	find("a-1", "a", 0) // this daemon has seen it end
	find("b-0", "b", 0)
	find("never", "", 0)
	stop()
	l, stop = open(t, dir)
	defer stop()
	find("a-1", "a", 1)
	find("a-1", "a", 0)
	if err := l.Forget(t.Context(), "a", []machine.TrimPart{{ExecID: "a-1"}}); err != nil {
		t.Fatal(err)
	}
	find("a-1", "", 1) // what is remembered is checked
	find("a-0", "a", 1)
	if err := l.Drop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	find("a-0", "", 1)
}

func TestTheIndexOfExecsIsBounded(t *testing.T) {
	var x execIndex
	for i := range 3 * maxExecIndex {
		x.put(fmt.Sprint(i), "s")
	}
	if n := len(x.newer) + len(x.older); n > 2*maxExecIndex || x.sandboxOf(fmt.Sprint(3*maxExecIndex-1)) != "s" || x.sandboxOf(fmt.Sprint(2*maxExecIndex)) != "s" {
		t.Errorf("%d execs are remembered, or not the newest", n)
	}
}

// BenchmarkFindExec finds an exec beside so many sandboxes whose records are kept.
func BenchmarkFindExec(b *testing.B) {
	for _, kept := range []int{10, 1000} {
		l := fresh(b)
		for i := range kept {
			longAgo(b, l, fmt.Sprintf("s%05d", i), 1)
		}
		last := fmt.Sprintf("s%05d-0", kept-1)
		for _, what := range []string{"searched", "remembered"} {
			b.Run(fmt.Sprint(kept, "/", what), func(b *testing.B) {
				for b.Loop() {
					if what == "searched" {
						l.execs.newer, l.execs.older = nil, nil
					}
					if _, err := l.FindExec(b.Context(), last); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
