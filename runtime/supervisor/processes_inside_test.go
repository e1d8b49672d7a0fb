package supervisor

import (
	"os"
	"os/exec"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Each answer goes on after the last process of the one before, and the last answer says that
// there are no more.
func TestAListOfProcessesIsDividedIntoAnswers(t *testing.T) {
	want := map[uint32]bool{uint32(os.Getpid()): true}
	for range 3 {
		cmd := exec.CommandContext(t.Context(), "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		want[uint32(cmd.Process.Pid)] = true
	}
	s := newInside(t)
	var resp *guestv1.ProcessesResponse
	for after := 0; resp == nil || resp.GetMore(); {
		resp = s.listProcesses(after, 0)
		if len(resp.GetProcesses()) == 0 && !resp.GetMore() { // the last one, of another test, has just ended
			break
		}
		if len(resp.GetProcesses()) != 1 {
			t.Fatalf("an answer with room for one process has %d", len(resp.GetProcesses()))
		}
		p := resp.GetProcesses()[0]
		if int(p.GetPid()) <= after {
			t.Fatalf("after process %d comes %d", after, p.GetPid())
		}
		after = int(p.GetPid())
		delete(want, p.GetPid())
	}
	if len(want) != 0 {
		t.Errorf("these are missing: %v", want)
	}
	if resp := s.listProcesses(0, maxListed); resp.GetMore() || len(resp.GetProcesses()) < 4 {
		t.Errorf("one answer has room for all, and has %d", len(resp.GetProcesses()))
	}
}
