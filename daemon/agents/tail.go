package agents

import (
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/journal"
)

const (
	// maxTail bounds what the next incarnation gets of journals, in bytes.
	maxTail = 1 << 20
	// tailWithin bounds how long journals are read for it.
	tailWithin = 5 * time.Second
)

// tail returns the rows of earlier incarnations from the row of a checkpoint on: that row
// and those of calls. It is nil if that row is not found: the checkpoint alone is enough to
// go on. Without a checkpoint, they are the rows from the first incarnation on.
func (r *Runner) tail(a ledger.Agent, c *agboxv1.AgentCheckpoint) ([]byte, error) {
	began := r.now()
	var parts [][]byte
	for n, size := a.Incarnation.N-1, 0; n > 0 && r.now().Sub(began) < tailWithin; n-- {
		rows, found, err := r.calls(a, n, c)
		if err != nil {
			return nil, err
		}
		parts = append(parts, rows)
		if size += len(rows); size > maxTail {
			return nil, nil
		}
		if found || c == nil && n == 1 {
			slices.Reverse(parts)
			return slices.Concat(parts...), nil
		}
	}
	return nil, nil
}

// calls returns the rows of an incarnation's calls, and of the checkpoint with those after
// it if found. Too many are cut.
func (r *Runner) calls(a ledger.Agent, n uint32, c *agboxv1.AgentCheckpoint) (rows []byte, found bool, err error) {
	_, err = readJournal(r.paths.SandboxLogs(a.SandboxID), agent.ExecID(a.ID, n), journal.Beginning(), func(row journal.Row, _ journal.Summary) {
		switch {
		case row.Op == journal.Checkpoint && c != nil && row.Mark.ID == c.GetCheckpointId():
			rows, found = nil, true
		case row.Op != journal.Call || len(rows) > maxTail:
			return
		}
		if line, err := journal.Encode(row); err == nil {
			rows = append(rows, line...)
		}
	})
	return rows, found, err
}
