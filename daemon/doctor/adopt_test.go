package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestAgentsAreAdoptedWithTheirSandboxes(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	o := offline(engine, install)
	spec := &agboxv1.AgentSpec{Command: []string{"true"}}
	held := &agboxv1.AgentSpec{Command: []string{"true"}, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}
	o.Agents = func() []ledger.AdoptedAgent {
		return []ledger.AdoptedAgent{
			{ID: "x", Name: "one", SandboxID: "a", Incarnation: 2, Attempt: 2, Spec: spec},
			{ID: "y", Name: "one", SandboxID: "b", Incarnation: 1, Attempt: 1, Spec: spec},
			{ID: "z", Name: "two", SandboxID: "gone", Incarnation: 1, Attempt: 1, Spec: spec},
			{ID: "w", Parent: "x", Depth: 2, SandboxID: "b", After: []string{"y"}, Work: []byte("do it"), Spec: held},
			{ID: "v", Parent: "gone", Depth: 2, SandboxID: "b", Incarnation: 1, Attempt: 1, Spec: held},
		}
	}
	for _, fix := range []bool{false, true} {
		var got []string
		for _, f := range examineOffline(t, o, fix).GetFindings() {
			if f.GetKind() == agboxv1.DoctorKind_DOCTOR_KIND_AGENT {
				got = append(got, f.GetId()+" "+short(f))
			}
		}
		done := ""
		if fix {
			done = " done"
		}
		want := []string{"x ADOPT AGENT a" + done, "y ADOPT AGENT b" + done, "z LEAVE AGENT gone", "w ADOPT AGENT b" + done, "v ADOPT AGENT b" + done}
		if !slices.Equal(got, want) {
			t.Errorf("the findings are %q; want %q", got, want)
		}
	}
	l := begin(t, engine, install.Data)
	x, _ := l.ledger.Agent("x")
	y, _ := l.ledger.Agent("y")
	_, z := l.ledger.Agent("z")
	if x.Incarnations != 2 || x.Crashes != 1 || x.SandboxID != "a" || y.Name != "" || y.Incarnations != 1 || z {
		t.Errorf("the agents are %+v, %+v, %v", x.Record, y.Record, z)
	}
	w, _ := l.ledger.Agent("w")
	work, err := l.ledger.AgentWork(t.Context(), "w")
	if w.Parent != "x" || w.Depth != 2 || w.Incarnations != 0 || w.Incarnation != nil || w.Word() != "PENDING" || !w.HeldBy("agent:x") || string(work) != "do it" || err != nil {
		t.Errorf("the agent that had not begun is %+v with %q, %v", w.Record, work, err)
	}
	if followers := l.ledger.Followers("y"); len(followers) != 1 || followers[0].ID != "w" {
		t.Errorf("agent y is followed by %v", followers)
	}
}

// leaveStatus writes status files into the log folder of a sandbox.
func leaveStatus(t *testing.T, install paths.Install, sandboxID string, phase guestv1.ExecPhase, execIDs ...string) {
	t.Helper()
	folder := install.SandboxLogs(sandboxID)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := logs.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, id := range execIDs {
		raw, err := (&guestv1.ExecRecord{ExecId: id, Phase: phase, Request: &guestv1.RecordedRequest{Command: []string{"work"}}}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.WriteStatus(id, raw, logs.StatusOptions{Owner: logs.KeepOwner, NoSync: true}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASandboxCannotClaimTheExecsOfAnother(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	leaveStatus(t, install, "a", guestv1.ExecPhase_EXEC_PHASE_RUNNING, "runs", "claimed")
	leaveStatus(t, install, "a", guestv1.ExecPhase_EXEC_PHASE_EXITED, "ended")
	leaveStatus(t, install, "b", guestv1.ExecPhase_EXEC_PHASE_RUNNING, "claimed", "lost", "main-a", "main-z")

	out := examineOffline(t, offline(engine, install), true)
	if text := why(t, out, "ADOPT CONTAINER a done"); !strings.Contains(text, "2 commands are adopted, 1 of them running.") ||
		!strings.Contains(text, "1 command is not adopted, because another sandbox claims the same id.") {
		t.Errorf("of a it says %q", text)
	}
	if text := why(t, out, "ADOPT CONTAINER b done"); !strings.Contains(text, "1 command is adopted, 0 of them running.") ||
		!strings.Contains(text, "2 status files are not valid") {
		t.Errorf("of b it says %q", text)
	}
	l := begin(t, engine, install.Data)
	a, _ := l.ledger.Sandbox("a")
	b, _ := l.ledger.Sandbox("b")
	if a.State != machine.Ready || len(a.Execs) != 1 || a.Execs["runs"].ID == "" || b.State != machine.Stopped {
		t.Errorf("the records are %+v and %+v", a.Record, b.Record)
	}
	for box, want := range map[string][]string{"a": {"ended", "runs"}, "b": {"lost"}} {
		page, err := l.ledger.Execs(t.Context(), box, "", 10)
		var got []string
		for _, e := range page {
			got = append(got, e.GetExecId())
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("sandbox %s has the execs %q, want %q; error %v", box, got, want, err)
		}
	}
	if st, err := l.ledger.Exec(t.Context(), "b", "lost"); err != nil || st.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() {
		t.Errorf("what ran in b is %v, error %v", st, err)
	}
}

func TestALogFolderThatIsALinkKeepsNoSandboxFromBeingAdopted(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	leaveStatus(t, install, "b", guestv1.ExecPhase_EXEC_PHASE_EXITED, "theirs")
	_ = os.Remove(install.SandboxLogs("a"))
	if err := os.Symlink(install.SandboxLogs("b"), install.SandboxLogs("a")); err != nil {
		t.Fatal(err)
	}
	out := examineOffline(t, offline(engine, install), true)
	if text := why(t, out, "ADOPT CONTAINER a done"); !strings.Contains(text, "Its commands are not adopted: ") {
		t.Errorf("of a it says %q", text)
	}
	if text := why(t, out, "ADOPT CONTAINER b done"); !strings.Contains(text, "1 command is adopted") {
		t.Errorf("of b it says %q", text)
	}
}
