package incarnations

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/logs"
)

// TestTheNewestResultsAreHandedOn has calls of two incarnations: all of them are in the tail, and
// the results of the oldest are dropped.
func TestTheNewestResultsAreHandedOn(t *testing.T) {
	var all []journal.Row
	var older, newer tailRows
	room := 3 * journal.MaxResult
	end := func(n int) journal.Row {
		size := uint64(journal.MaxResult)
		return journal.Row{Op: journal.Call, Phase: journal.End, Kind: journal.Tool, Invocation: strconv.Itoa(n), Result: make([]byte, size), ResultBytes: &size}
	}
	for n := range 2 {
		newer.add(end(4+n), room)
	}
	for n := range 4 {
		older.add(end(n), room-newer.results)
	}
	for line := range bytes.Lines(append(older.encode(), newer.encode()...)) {
		var row journal.Row
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		all = append(all, row)
	}
	var with []string
	for i, row := range all {
		if row.Invocation != strconv.Itoa(i) || row.ResultBytes == nil {
			t.Errorf("row %d is %+v", i, row)
		}
		if len(row.Result) > 0 {
			with = append(with, row.Invocation)
		}
	}
	if want := []string{"3", "4", "5"}; len(all) != 6 || !slices.Equal(with, want) {
		t.Errorf("of %d rows %q have a result; want %q", len(all), with, want)
	}
}

// TestTheNewestLongResultsAreHandedOn in a file, in which the rows of two incarnations find them.
// What is not there any more is zeros, so that the others stay at their places.
func TestTheNewestLongResultsAreHandedOn(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	parts := []tailRows{{sandboxID: "a", execID: "new"}, {sandboxID: "a", execID: "old"}}
	content := func(part, n int) []byte { return bytes.Repeat([]byte{byte('a' + 4*part + n)}, maxLong/4) }
	for i := range parts {
		file, err := dir.CreateResults(parts[i].execID, nil, logs.KeepOwner)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			at, size := int64(n*maxLong/4), uint64(maxLong/4)
			if i == 1 && n == 2 { // only the beginning is there
				_, err = file.WriteAt(content(i, n)[:10], at)
			} else {
				_, err = file.WriteAt(content(i, n), at)
			}
			if err != nil {
				t.Fatal(err)
			}
			parts[i].rows = append(parts[i].rows, journal.Row{
				Op: journal.Call, Invocation: strconv.Itoa(4*i + n), ResultBytes: &size, ResultFile: &journal.ResultFile{At: uint64(at), CRC32: uint32(n)},
			}, journal.Row{Op: journal.Call})
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	long := placeLong(parts)
	from, done := b.readLong(long)
	defer done()
	all, err := io.ReadAll(from)
	if err != nil || len(all) != maxLong {
		t.Fatalf("the file has %d bytes, %v", len(all), err)
	}
	for i := range parts {
		for n := range 3 {
			row := parts[i].rows[2*n]
			if i == 1 && n < 2 { // of four, these are the oldest
				if row.ResultFile != nil {
					t.Errorf("an old result is at %+v", row.ResultFile)
				}
				continue
			}
			want := content(i, n)
			if i == 1 {
				clear(want[10:])
			}
			if row.ResultFile == nil || row.ResultFile.CRC32 != uint32(n) || !bytes.Equal(all[row.ResultFile.At:][:maxLong/4], want) {
				t.Errorf("result %d of part %d is at %+v", n, i, row.ResultFile)
			}
		}
	}
}

// called is a call that has ended.
func called(id string) []journal.Row {
	row := func(phase string) journal.Row {
		return journal.Row{Op: journal.Call, Phase: phase, Kind: journal.Tool, Name: "pay", Invocation: id}
	}
	return []journal.Row{row(journal.Begin), row(journal.End)}
}

// TestThePastOfAMovedAgentIsReadWhereItRan: its calls with their long results, its handoff, and
// how things were before its pause.
func TestThePastOfAMovedAgentIsReadWhereItRan(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	rows, size := called("pay-7"), uint64(journal.MaxResult+1)
	rows[1].ResultBytes, rows[1].ResultFile = &size, &journal.ResultFile{CRC32: 5}
	rows = append(rows, turnAt(75, gate.Aging), journal.Row{Op: journal.Picture, Seen: &journal.Seen{Files: map[string]journal.File{"/f": {Exists: true}}}})
	a := b.past(rows, called("pay-8"))
	a.Incarnations, a.AwaySince, a.AwayAt = 2, time.Now(), 9
	logsOf := b.Install.SandboxLogs
	if err := os.Rename(logsOf("a"), logsOf("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(logsOf("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.Moves = []agents.Stay{{First: 1, Last: 2, SandboxID: "old"}}
	lines, long, err := b.tail(t.Context(), a, nil)
	if err != nil || strings.Count(string(lines), "pay-7") != 2 || strings.Count(string(lines), "pay-8") != 2 {
		t.Errorf("its calls are %q, %v", lines, err)
	}
	if raw, err := b.handoff(t.Context(), a); err != nil || !strings.Contains(string(raw), "pay-7") {
		t.Errorf("its handoff is %s, %v", raw, err)
	}
	if seen, err := b.seenBefore(a); err != nil || seen == nil || !seen.Files["/f"].Exists {
		t.Errorf("before its pause there was %v, %v", seen, err)
	}
	dir, err := logs.OpenDir(logsOf("old"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	file, err := dir.CreateResults(agents.ExecID("x", 1), nil, logs.KeepOwner)
	if err == nil {
		_, err = file.WriteAt(bytes.Repeat([]byte("x"), int(size)), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	from, done := b.readLong(long)
	defer done()
	if all, err := io.ReadAll(from); err != nil || bytes.Count(all, []byte("x")) != int(size) {
		t.Errorf("its long result has %d bytes of %d, %v", bytes.Count(all, []byte("x")), size, err)
	}
	a.Moves[0].First = 2 // where the first one ran is not known any more
	if lines, _, err := b.tail(t.Context(), a, nil); err == nil {
		t.Errorf("without the first journal its calls are %q", lines)
	}
}

// TestWhetherAllCallsAreKnown: no calls and unknown calls are two things.
func TestWhetherAllCallsAreKnown(t *testing.T) {
	const known, unknown, failed = "known", "unknown", "failed"
	inherited := &agboxv1.AgentCheckpoint{Seq: 1, CheckpointId: "of another agent"}
	for _, row := range []struct {
		name       string
		past       [][]journal.Row
		checkpoint *agboxv1.AgentCheckpoint
		change     func(b *bench, a *ledger.Agent)
		want       string
		calls      int
	}{
		{name: "calls", past: [][]journal.Row{called("1"), called("2")}, want: known, calls: 4},
		{name: "no calls", past: [][]journal.Row{{mark(1)}}, want: known},
		{name: "no reports", past: [][]journal.Row{nil, nil}, want: known},
		{name: "no calls since the checkpoint", past: [][]journal.Row{called("1"), {mark(1)}}, checkpoint: &agboxv1.AgentCheckpoint{Seq: 1, CheckpointId: "c1"}, want: known, calls: 1},
		{name: "no row of the checkpoint", past: [][]journal.Row{called("1")}, checkpoint: &agboxv1.AgentCheckpoint{Seq: 2, CheckpointId: "c2"}, want: unknown},
		{name: "a checkpoint that the agent was spawned with", past: [][]journal.Row{called("1"), nil}, checkpoint: inherited, want: known, calls: 2, change: func(_ *bench, a *ledger.Agent) {
			a.Checkpoints, a.CheckpointEvents = []*agboxv1.AgentCheckpoint{inherited}, []uint64{0}
		}},
		{name: "a journal that was removed", past: [][]journal.Row{called("1"), called("2")}, want: failed, change: func(b *bench, a *ledger.Agent) { b.forget(agents.ExecID(a.ID, 1)) }},
		{name: "a start that was never accepted", past: [][]journal.Row{called("1"), called("2")}, want: known, calls: 2, change: func(b *bench, a *ledger.Agent) {
			b.remove(agents.ExecID(a.ID, 1))
		}},
	} {
		b := newBench(t, &agboxv1.AgentSpec{})
		a := b.past(row.past...)
		if row.change != nil {
			row.change(b, &a)
		}
		lines, _, err := b.tail(t.Context(), a, row.checkpoint)
		got := known
		if lines == nil {
			got = unknown
		}
		if err != nil {
			got = failed
		}
		if calls := bytes.Count(lines, []byte("\n")); got != row.want || calls != row.calls {
			t.Errorf("%s: they are %s, %d rows, %v; want %s, %d", row.name, got, calls, err, row.want, row.calls)
		}
	}
}

// remove removes the files of an exec.
func (b *bench) remove(execID string) {
	b.t.Helper()
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err == nil {
		defer dir.Close()
		err = dir.Remove(b.t.Context(), execID)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// forget accepts an exec, and removes its files and its record as its age does.
func (b *bench) forget(execID string) {
	b.t.Helper()
	if _, err := b.Ledger.AcceptExec(b.t.Context(), &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: execID, Command: []string{"x"}}, "boot"); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Ledger.EndExec(b.t.Context(), "a", &agboxv1.ExecEventDetails{ExecId: execID, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
		b.t.Fatal(err)
	}
	b.remove(execID)
	if err := b.Ledger.Forget(b.t.Context(), "a", []machine.TrimPart{{ExecID: execID}}); err != nil {
		b.t.Fatal(err)
	}
}
