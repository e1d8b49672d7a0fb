package execs

import (
	"os"
	"path/filepath"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/logs"
)

// leastJournal is what an incarnation can report even if its stack has no room left: its
// outcome, for example.
const leastJournal = 64 << 10

// journalBytes is how large the journal of an incarnation may become because of the stacks
// that its agent is in. 0 means that they have no bound.
func (r *Runner) journalBytes(a ledger.Agent) uint64 {
	var least uint64
	bounds, members := r.ledger.StackJournals(a)
	for i, left := range bounds {
		for _, m := range members[i] {
			left -= min(left, r.journalsOf(m))
		}
		if left = max(left, leastJournal); least == 0 || left < least {
			least = left
		}
	}
	return least
}

// journalsOf is the size of the journals of an agent, in bytes.
func (r *Runner) journalsOf(a ledger.Agent) (size uint64) {
	for _, s := range a.Stays() {
		for n := s.First; n <= s.Last; n++ {
			name := filepath.Join(r.paths.SandboxLogs(s.SandboxID), logs.JournalName(agent.ExecID(a.ID, n)))
			if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
				size += uint64(info.Size())
			}
		}
	}
	return size
}
