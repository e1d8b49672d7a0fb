package supervisor_test

import (
	"os"
	"path/filepath"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestASupervisorReportsThatItsLogDirectoryWasRemoved(t *testing.T) {
	b := newBox(t)
	if b.dial().LogsDeleted() {
		t.Error("the directory is there, and the greeting says that it was removed")
	}
	logs := filepath.Join(b.dir, "logs")
	b.must(os.RemoveAll(logs))
	b.must(os.Mkdir(logs, 0o755))
	c := b.dial()
	if !c.LogsDeleted() {
		t.Error("the greeting does not say that the directory was removed")
	}
	record := b.start(c, request("x", "true"))
	const want = "The log folder of the sandbox was removed on the host while the sandbox ran: stop and start the sandbox, which makes the folder again."
	if record.GetPhase() != guestv1.ExecPhase_EXEC_PHASE_FAILED || record.GetFailureMessage() != want {
		t.Errorf("an exec gives %v, want %q", record, want)
	}
}
