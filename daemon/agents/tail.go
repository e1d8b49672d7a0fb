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
	// maxTail bounds what the next incarnation gets of journals, in bytes. maxResults bounds the
	// results of calls in it beyond that: the newest are kept.
	maxTail    = 1 << 20
	maxResults = 8 << 20
	// tailWithin bounds how long journals are read for it.
	tailWithin = 5 * time.Second
)

// tail returns the rows of earlier incarnations from the row of a checkpoint on: that row
// and those of calls. It is nil if that row is not found: the checkpoint alone is enough to
// go on. Without a checkpoint, they are the rows from the first incarnation on.
func (r *Runner) tail(a ledger.Agent, c *agboxv1.AgentCheckpoint) ([]byte, error) {
	began := r.now()
	var parts []tailRows
	for n, size, room := a.Incarnation.N-1, 0, maxResults; n > 0 && r.now().Sub(began) < tailWithin; n-- {
		rows, found, err := r.calls(a, n, c, room)
		if err != nil {
			return nil, err
		}
		parts, room = append(parts, rows), room-rows.results
		if size += rows.size; size > maxTail {
			return nil, nil
		}
		if found || c == nil && n == 1 {
			slices.Reverse(parts)
			var all []byte
			for _, part := range parts {
				all = append(all, part.encode()...)
			}
			return all, nil
		}
	}
	return nil, nil
}

// tailRows are rows of one journal. size is in bytes and without results, which have results.
type tailRows struct {
	rows          []journal.Row
	size, results int
	// dropped is the number of the first rows that have lost their results.
	dropped int
}

// add appends a row, unless there are too many. Results that are too much for room are dropped,
// the oldest first.
func (t *tailRows) add(row journal.Row, room int) {
	result := row.Result
	row.Result = nil
	line, err := journal.Encode(row)
	if err != nil {
		return
	}
	if t.size += len(line); t.size > maxTail {
		return
	}
	row.Result = result
	t.rows, t.results = append(t.rows, row), t.results+len(result)
	for ; t.results > room && t.dropped < len(t.rows); t.dropped++ {
		t.results -= len(t.rows[t.dropped].Result)
		t.rows[t.dropped].Result = nil
	}
}

func (t *tailRows) encode() (lines []byte) {
	for _, row := range t.rows {
		line, _ := journal.Encode(row) // was encoded before
		lines = append(lines, line...)
	}
	return lines
}

// calls returns the rows of an incarnation's calls, and of the checkpoint with those after
// it if found. Too many are cut. room is for results.
func (r *Runner) calls(a ledger.Agent, n uint32, c *agboxv1.AgentCheckpoint, room int) (rows tailRows, found bool, err error) {
	_, err = readJournal(r.paths.SandboxLogs(a.SandboxID), agent.ExecID(a.ID, n), journal.Beginning(), func(row journal.Row, _ journal.Summary) {
		switch {
		case row.Op == journal.Checkpoint && c != nil && row.Mark.ID == c.GetCheckpointId():
			rows, found = tailRows{}, true
		case row.Op != journal.Call || rows.size > maxTail: // after too many, the checkpoint may follow
			return
		}
		rows.add(row, room)
	})
	return rows, found, err
}
