package execs

import (
	"os"
	"path/filepath"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
)

// leastJournal is what an incarnation can report even if its stack has no room left: its
// outcome, for example.
const leastJournal = 64 << 10

// journalBytes is how large the journal of an incarnation may become because of the stacks
// that its agent is in. 0 means that they have no bound.
func (r *Runner) journalBytes(a ledger.Agent) uint64 {
	var least uint64
	for _, m := range r.ledger.UncountedJournals(a) {
		r.ledger.CountJournals(m, func(n uint32) uint64 { return r.journalOf(m, n) })
	}
	for _, stack := range r.ledger.StackJournals(a) {
		left := stack.Most - min(stack.Most, stack.Ended)
		for _, m := range stack.Running {
			left -= min(left, r.journalOf(m, m.Incarnation.N))
		}
		if left = max(left, leastJournal); least == 0 || left < least {
			least = left
		}
	}
	return least
}

// journalOf is the size of the journal of an incarnation, in bytes.
func (r *Runner) journalOf(a ledger.Agent, n uint32) uint64 {
	r.looked.Add(1)
	name := filepath.Join(r.paths.SandboxLogs(a.SandboxOf(n)), logs.JournalName(agents.ExecID(a.ID, n)))
	if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
		return uint64(info.Size())
	}
	return 0
}
