package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/agbox/agbox/daemon/ledger"
)

// adoptExecs adds the execs to the planned sandboxes. Their status files were written in
// the containers, so a file that cannot be used never keeps its sandbox from being adopted.
func (o Offline) adoptExecs(ctx context.Context, plan []adoption) error {
	claims := make(map[string]int)
	found := make([]ledger.AdoptedExecs, len(plan))
	for i, a := range plan {
		folder := o.Paths.SandboxLogs(a.ID)
		if _, err := os.Lstat(folder); err == nil {
			a.finding.Why += fmt.Sprintf(" The logs of its commands stay in %s.", folder)
		}
		var err error
		found[i], err = o.Execs(ctx, a.ID, a.Running)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			o.Log.Warn("the commands of a sandbox cannot be adopted", "sandbox_id", a.ID, "error", err)
			a.finding.Why += fmt.Sprintf(" Its commands are not adopted: %v.", err)
		}
		for _, e := range found[i].Execs {
			claims[e.Request.GetExecId()]++
		}
	}
	for i := range plan {
		// Exec ids are unique in an install, so all but one of these claims are false.
		// Nobody can tell which.
		all := len(found[i].Execs)
		found[i].Execs = slices.DeleteFunc(found[i].Execs, func(e ledger.AdoptedExec) bool { return claims[e.Request.GetExecId()] > 1 })
		plan[i].Execs = found[i].Execs
		plan[i].finding.Why += toldExecs(found[i], all-len(found[i].Execs))
	}
	return nil
}

// toldExecs says which commands of a sandbox are adopted, and which are not.
func toldExecs(found ledger.AdoptedExecs, claimedTwice int) string {
	running := 0
	for _, e := range found.Execs {
		if e.End == nil {
			running++
		}
	}
	var said string
	if n := len(found.Execs); n > 0 {
		said += fmt.Sprintf(" %s adopted, %d of them running.", counted(n, "command is", "commands are"), running)
	}
	if found.Refused > 0 {
		said += fmt.Sprintf(" %s not valid; their commands are not adopted.", counted(found.Refused, "status file is", "status files are"))
	}
	if claimedTwice > 0 {
		said += fmt.Sprintf(" %s not adopted, because another sandbox claims the same id.", counted(claimedTwice, "command is", "commands are"))
	}
	if found.Omitted > 0 {
		said += fmt.Sprintf(" %s not adopted, because there are too many.", counted(found.Omitted, "older command is", "older commands are"))
	}
	if found.More {
		said += " Its log folder has too many files; some were not read."
	}
	return said
}
