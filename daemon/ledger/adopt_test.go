package ledger

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
)

// adoptable is a sandbox "a" in which exec "seven" has ended and, if it runs, exec
// "runs" and its main command run.
func adoptable(running bool) Adopted {
	started := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	of := func(id, name string) *agboxv1.CreateExecRequest {
		return &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: id, Name: name, Command: []string{"work"}, Tty: true}
	}
	a := Adopted{ID: "a", Nonce: "n", Spec: &agboxv1.CreateSpec{Image: "img"}, Running: running}
	a.Execs = append(a.Execs, AdoptedExec{Request: of("seven", ""), StartedAt: started, End: &agboxv1.ExecEventDetails{
		ExecId: "seven", ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 7, StartedAt: started,
	}})
	if running {
		a.Execs = append(a.Execs, AdoptedExec{Request: of("main-a", "main"), Main: true}, AdoptedExec{Request: of("runs", "job"), StartedAt: started})
	}
	return a
}

func TestExecsAreAdoptedWithTheirSandbox(t *testing.T) {
	l := fresh(t)
	sb, err := l.Adopt(t.Context(), adoptable(true))
	if err != nil {
		t.Fatal(err)
	}
	if sb.State != machine.Ready || len(sb.Execs) != 2 || !sb.Execs["main-a"].Main || sb.Execs["runs"].Name != "job" {
		t.Errorf("the record is %+v", sb.Record)
	}
	for id, e := range sb.Execs {
		if e.BootID != "" { // with one, a daemon could start it again
			t.Errorf("exec %s has the boot id %q", id, e.BootID)
		}
	}
	if st, err := l.Exec(t.Context(), "a", "seven"); err != nil || st.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || st.GetExitCode() != 7 {
		t.Errorf("seven is %v, error %v", st, err)
	}
	st, err := l.Exec(t.Context(), "a", "runs")
	if err != nil || st.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING || !st.GetTty() || st.GetStartedAt().AsTime().Year() != 2026 {
		t.Errorf("runs is %v, error %v", st, err)
	}
	select {
	case <-l.ExecDone("runs"):
		t.Error("who waits for the running exec is told that it has ended")
	default:
	}
	// Nobody starts another exec under an adopted id.
	if _, err := l.AcceptExec(t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "seven", Command: []string{"other"}}, "boot"); err == nil {
		t.Error("the id of an adopted exec was given away again")
	}
	if known, _, err := l.AcceptMain(t.Context(), sb.Record, nil, mainOf("a", "main-a")); err != nil || !known {
		t.Errorf("the adopted main command is known: %v, error %v", known, err)
	}
	if err := l.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{ExecId: "runs", ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED, ExitCode: 23}); err != nil {
		t.Fatal(err)
	}
	<-l.ExecDone("runs")
}

func TestASandboxThatDoesNotRunIsAdoptedAsStoppedWithItsExecs(t *testing.T) {
	l := fresh(t)
	sb, err := l.Adopt(t.Context(), adoptable(false))
	if err != nil || sb.State != machine.Stopped || len(sb.Execs) != 0 {
		t.Fatalf("the record is %+v, error %v", sb.Record, err)
	}
	page, err := l.Execs(t.Context(), "a", "", 10)
	if err != nil || !slices.ContainsFunc(page, func(e *agboxv1.ExecStatus) bool { return e.GetExitCode() == 7 }) {
		t.Errorf("its execs are %v, error %v", page, err)
	}
}
