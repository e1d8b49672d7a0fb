package incarnations

import "github.com/agbox/agbox/agents/journal"

// Journal calls each with the rows of the journal of an incarnation after a place and a row,
// and with their numbers, until each fails. It returns the place after them, and the error of
// each. Rows that no supervisor can have written are left out. A journal that does not exist
// has none.
func (r *Runner) Journal(sandboxID, execID string, from journal.Tail, after uint64, each func(number uint64, row []byte) error) (journal.Tail, error) {
	var failed error
	at, err := readJournalWhile(r.paths.SandboxLogs(sandboxID), execID, from, func(row journal.Row, sum journal.Summary) bool {
		if sum.Rows <= after {
			return true
		}
		var line []byte
		if line, failed = journal.Encode(row); failed == nil {
			failed = each(sum.Rows, line[:len(line)-1])
		}
		return failed == nil
	})
	if failed != nil {
		return at, failed
	}
	return at, err
}
