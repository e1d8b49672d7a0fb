package incarnations

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/logs"
)

// past writes the journals of earlier incarnations, and returns the agent in the next one.
func (b *bench) past(all ...[]journal.Row) ledger.Agent {
	b.t.Helper()
	dir, err := logs.OpenDir(b.Install.SandboxLogs("a"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	a := b.agent()
	for n, rows := range all {
		id := agents.ExecID(a.ID, uint32(n+1))
		j, err := dir.CreateJournal(id, journal.MaxJournal, nil, logs.KeepOwner)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, row := range rows {
			line, err := journal.Encode(row)
			if err == nil {
				err = j.Append(line, false)
			}
			if err != nil {
				b.t.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			b.t.Fatal(err)
		}
		a.Last = &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT, ExecId: id}
	}
	inc := *a.Incarnation
	inc.N = uint32(len(all) + 1)
	a.Incarnation = &inc
	return a
}

func mark(seq uint64) journal.Row {
	return journal.Row{Op: journal.Checkpoint, Mark: &journal.Mark{Seq: seq, ID: fmt.Sprint("c", seq), Kind: journal.StepCheckpoint, Bytes: 1}}
}

func turnAt(percent uint32, word string) journal.Row {
	return journal.Row{Op: journal.Turn, Percent: percent, Context: word}
}

// TestWhoeverSavesNothingIsHandedOn: from AGING on. Otherwise the checkpoint says more.
func TestWhoeverSavesNothingIsHandedOn(t *testing.T) {
	aged, dead, step := turnAt(75, gate.Aging), turnAt(101, gate.Dead), journal.Row{Op: journal.Step, Steps: 1}
	for _, row := range []struct {
		name string
		past [][]journal.Row
		from float64 // the incarnation that it is about; 0 if there is none
	}{
		{"it had room", [][]journal.Row{{step}}, 0},
		{"it saved nothing", [][]journal.Row{{step, aged, dead}}, 1},
		{"it saved before only", [][]journal.Row{{mark(1), aged, step, dead}}, 1},
		{"it saved then", [][]journal.Row{{aged, mark(1), dead}}, 0},
		{"it was only AGING when it ended", [][]journal.Row{{aged}}, 1},
		{"the one after it crashed at once", [][]journal.Row{{step, dead}, {}}, 1},
		{"the one after it saved its work", [][]journal.Row{{step, dead}, {mark(1)}}, 0},
		{"both", [][]journal.Row{{dead}, {step, dead}}, 2},
		{"too long ago", [][]journal.Row{{dead}, {step}, {step}, {step}, {step}, {step}}, 0},
		{"many starts could not be written down since", append([][]journal.Row{{dead}, {step}}, make([][]journal.Row, 50)...), 1},
		{"no journals", nil, 0},
	} {
		b := newBench(t, &agboxv1.AgentSpec{Title: "Mend it"})
		raw, err := b.handoff(t.Context(), b.past(row.past...))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{"incarnation": 0.0}
		if raw != nil && json.Unmarshal(raw, &got) != nil {
			t.Errorf("%s: %s is no JSON", row.name, raw)
		}
		if got["incarnation"] != row.from || row.from > 0 && (got["made_by"] != "agbox" || got["title"] != "Mend it") {
			t.Errorf("%s: it gets %s", row.name, raw)
		}
	}
}

// TestAHandoffHasTheLastThings, and is bounded whatever the program has reported.
func TestAHandoffHasTheLastThings(t *testing.T) {
	long, size := strings.Repeat("é\"\\<", 250), uint64(20<<10)
	var rows []journal.Row
	for n := range 200 {
		id := fmt.Sprint("call-", n)
		rows = append(rows,
			journal.Row{Op: journal.Gate, Kind: journal.Tool, Name: fmt.Sprint("tool-", n), Context: gate.Healthy},
			journal.Row{Op: journal.Call, Phase: journal.Begin, Kind: journal.Tool, Name: "t", Invocation: id},
			journal.Row{Op: journal.Say, Text: long[:len(long)/2] + fmt.Sprint(n)},
			journal.Row{Op: journal.Send, To: "parent", Text: strings.Repeat("x", 1<<10)},
		)
		if n < 199 {
			rows = append(rows, journal.Row{Op: journal.Call, Phase: journal.End, Kind: journal.Tool, Name: "t", Invocation: id, Result: []byte(strings.Repeat("\x01", int(size))), ResultBytes: &size})
		}
	}
	rows = append(rows, journal.Row{Op: journal.Step, Steps: 7}, journal.Row{Op: journal.Error, Text: "no such table"},
		journal.Row{Op: journal.Phase, State: journal.Verifying}, journal.Row{Op: journal.Context, Percent: 101, Context: gate.Dead})
	b := newBench(t, &agboxv1.AgentSpec{})
	raw, err := b.handoff(t.Context(), b.past(rows))
	if err != nil || len(raw) > 512<<10 {
		t.Fatalf("it has %d bytes, %v", len(raw), err)
	}
	var got handoff
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Calls) != handoffCalls || len(got.Tools) != handoffTools || len(got.Said) != handoffTexts || len(got.Sent) == 0 || got.Sent[0].To != "parent" {
		t.Fatalf("it has %d calls, %d tools, %d texts and %d messages", len(got.Calls), len(got.Tools), len(got.Said), len(got.Sent))
	}
	pending, before := got.Calls[handoffCalls-1], got.Calls[handoffCalls-2]
	if pending.Invocation != "call-199" || pending.Ended || before.Invocation != "call-198" || !before.Ended || *before.ResultBytes != size || len(before.Result) != handoffText {
		t.Errorf("the last calls are %+v, %+v", before, pending)
	}
	if got.Steps != 7 || got.Phase != journal.Verifying || got.Context != gate.Dead || got.ContextPercent != 101 || !strings.Contains(string(got.Ended), "CONTEXT") || got.Error != "no such table" {
		t.Errorf("it is %+v", got)
	}
}
