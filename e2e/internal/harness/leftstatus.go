package harness

import (
	"testing"

	"github.com/agbox/agbox/logs"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// LeftStatus reports whether the status file of an exec in the folder of its sandbox's
// logs says that it has ended: a daemon need not be there.
func LeftStatus(t testing.TB, folder, execID string) bool {
	t.Helper()
	dir, err := logs.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	raw, err := dir.ReadStatus(execID)
	if err != nil {
		t.Fatal(err)
	}
	record := new(guestv1.ExecRecord)
	if err := record.UnmarshalVT(raw); err != nil {
		t.Fatal(err)
	}
	return record.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED
}
