package server

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// A container that was missing may have run on. While its commands are lost, what they left is shown.
func TestALostExecTellsWhatItsStatusFileSays(t *testing.T) {
	s := attachable(t)
	if err := s.ledger.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{
		ExecId: "e", ExecState: agboxv1.ExecState_EXEC_STATE_FAILED, ExitCode: 255, ErrorCode: agboxv1.ErrorReason_EXEC_LOST.String(), ErrorMessage: "It is lost.",
	}); err != nil {
		t.Fatal(err)
	}
	dir, err := logs.OpenDir(s.paths.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	for phase, want := range map[guestv1.ExecPhase]string{
		guestv1.ExecPhase_EXEC_PHASE_RUNNING: "It is lost.",
		guestv1.ExecPhase_EXEC_PHASE_EXITED:  "It is lost. Its status file says that it ended with exit code 7.",
	} {
		raw, err := (&guestv1.ExecRecord{ExecId: "e", Phase: phase, ExitCode: 7}).MarshalVT()
		if err == nil {
			err = dir.WriteStatus("e", raw, logs.StatusOptions{Owner: logs.KeepOwner, NoSync: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.GetExec(t.Context(), &agboxv1.GetExecRequest{ExecId: "e"})
		if err != nil {
			t.Fatal(err)
		}
		if e := got.GetExec(); !strings.HasPrefix(e.GetError(), want) || phase == guestv1.ExecPhase_EXEC_PHASE_RUNNING && e.GetError() != want || e.GetExitCode() != 255 || e.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED {
			t.Errorf("%v: %v", phase, e)
		}
	}
}
