package agents

import (
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/journal"
)

// Journal calls each with the rows of the journal of an incarnation after a row, and their
// numbers, until each fails; it returns that error. Rows that no supervisor can have written
// are left out. A journal that does not exist has none.
func (r *Runner) Journal(a ledger.Agent, sandboxID, execID string, after uint64, each func(number uint64, row []byte) error) error {
	from := journal.Beginning()
	from.Sum.Phase = agent.RulesOf(a.Spec).FirstPhase()
	var failed error
	_, err := readJournal(r.paths.SandboxLogs(sandboxID), execID, from, func(row journal.Row, sum journal.Summary) {
		if failed != nil || sum.Rows <= after {
			return
		}
		var line []byte
		if line, failed = journal.Encode(row); failed == nil {
			failed = each(sum.Rows, line[:len(line)-1])
		}
	})
	if failed != nil {
		return failed
	}
	return err
}
