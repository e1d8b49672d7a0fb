package incarnations

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
)

const (
	// maxTail bounds what the next incarnation gets of journals, in bytes. maxResults bounds the
	// results of calls in it beyond that: the newest are kept.
	maxTail    = 1 << 20
	maxResults = 8 << 20
	// maxLong bounds the long results that it gets besides, in a file. The file is in the memory of
	// the sandbox.
	maxLong = 16 << 20
	// tailWithin bounds how long journals are read for it.
	tailWithin = 5 * time.Second
)

// tail returns the rows of earlier incarnations from the row of a checkpoint on: that row
// and those of calls. Without a checkpoint, or if the agent was spawned with it, they are the rows
// from the first incarnation on. It is nil if not all of them are found: the checkpoint alone is
// enough to go on, but whether a call was made is not known then. If there were no calls, it is
// empty.
func (r *Runner) tail(ctx context.Context, a ledger.Agent, c *agboxv1.AgentCheckpoint) ([]byte, []longResult, error) {
	began, whole := r.now(), c == nil || spawnedWith(a, c)
	var parts []tailRows
	for n, size, room := a.Incarnation.N-1, 0, maxResults; n > 0 && r.now().Sub(began) < tailWithin; n-- {
		rows, found, err := r.calls(ctx, a, n, c, room)
		if err != nil {
			return nil, nil, err
		}
		rows.sandboxID, rows.execID = a.SandboxOf(n), agents.ExecID(a.ID, n)
		parts, room = append(parts, rows), room-rows.results
		if size += rows.size; size > maxTail {
			return nil, nil, nil
		}
		if found || whole && n == 1 {
			long := placeLong(parts)
			slices.Reverse(parts)
			all := []byte{}
			for _, part := range parts {
				all = append(all, part.encode()...)
			}
			return all, long, nil
		}
	}
	return nil, nil, nil
}

// spawnedWith reports whether a checkpoint is that of another agent, whose work the agent
// continues. No journal of the agent has its row.
func spawnedWith(a ledger.Agent, c *agboxv1.AgentCheckpoint) bool {
	for i, kept := range a.Checkpoints {
		if kept.GetSeq() == c.GetSeq() {
			return a.CheckpointEvents[i] == 0
		}
	}
	return false
}

// longResult is a result in the file of an exec.
type longResult struct {
	sandboxID, execID string
	at, size          int64
}

// placeLong chooses the long results that are handed on, the newest first, and gives them their
// places in the file of the next incarnation. The parts are the newest first. The rows of others
// have only the beginning of the result then.
func placeLong(parts []tailRows) (long []longResult) {
	room := uint64(maxLong)
	for _, part := range parts {
		for _, row := range slices.Backward(part.rows) {
			switch f := row.ResultFile; {
			case f == nil:
			case *row.ResultBytes > room:
				room = 0 // and none that is older
			default:
				room -= *row.ResultBytes
				long = append(long, longResult{part.sandboxID, part.execID, int64(f.At), int64(*row.ResultBytes)})
			}
		}
	}
	kept, at := len(long), uint64(0)
	for _, part := range parts {
		for i := range slices.Backward(part.rows) {
			row := &part.rows[i]
			if row.ResultFile == nil {
				continue
			}
			if kept == 0 {
				row.ResultFile = nil
				continue
			}
			kept--
			row.ResultFile = &journal.ResultFile{At: at, CRC32: row.ResultFile.CRC32}
			at += *row.ResultBytes
		}
	}
	return long
}

// readLong reads long results one after the other, as far as they are there: what is missing is
// zeros, and the checksums in the journal tell.
func (r *Runner) readLong(long []longResult) (from io.Reader, done func()) {
	files := make(map[string]*os.File)
	var all []io.Reader
	for _, l := range long {
		f, opened := files[l.execID]
		if !opened {
			f = r.openResults(l)
			files[l.execID] = f
		}
		result := io.Reader(zeros{})
		if f != nil {
			result = io.MultiReader(io.NewSectionReader(f, l.at, l.size), zeros{})
		}
		all = append(all, io.LimitReader(result, l.size))
	}
	return io.MultiReader(all...), func() {
		for _, f := range files {
			_ = f.Close() // nil is refused
		}
	}
}

// openResults opens the file that has a long result, or returns nil.
func (r *Runner) openResults(l longResult) *os.File {
	dir, err := logs.OpenDir(r.paths.SandboxLogs(l.sandboxID))
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	f, err := dir.OpenResults(l.execID)
	if err != nil {
		return nil
	}
	return f
}

// zeros are as many as one reads.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// tailRows are rows of one journal. size is in bytes and without results, which have results.
type tailRows struct {
	sandboxID, execID string
	rows              []journal.Row
	size, results     int
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
// it if found. Too many are cut. room is for results. It is an error if the journal was removed
// with the record of its exec; an incarnation that reported nothing has none.
func (r *Runner) calls(ctx context.Context, a ledger.Agent, n uint32, c *agboxv1.AgentCheckpoint, room int) (rows tailRows, found bool, err error) {
	at, err := r.readPast(a, n, func(row journal.Row, _ journal.Summary) {
		switch {
		case row.Op == journal.Checkpoint && c != nil && row.Mark.ID == c.GetCheckpointId():
			rows, found = tailRows{}, true
		case row.Op != journal.Call || rows.size > maxTail: // after too many, the checkpoint may follow
			return
		}
		rows.add(row, room)
	})
	if err == nil && at.Offset == 0 {
		gone, unknown := r.ledger.ExecForgotten(ctx, a.SandboxOf(n), agents.ExecID(a.ID, n))
		if err = unknown; gone {
			err = fmt.Errorf("the journal of incarnation %d is not kept any more", n)
		}
	}
	return rows, found, err
}
