package agentsocket

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/logs"
)

func TestBeatsAreKeptOnDisk(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 1, Heartbeat: Heartbeat{Durable: 30 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	in, start := s.of("e"), time.UnixMilli(1_700_000_000_000)
	if in == nil || a == nil {
		t.Fatal("there is no incarnation")
	}
	beat := func(after time.Duration, want time.Duration) {
		t.Helper()
		if _, err := in.report(journal.Row{Op: journal.Beat}, start.Add(after)); err != nil {
			t.Fatal(err)
		}
		raw, err := dir.ReadBeat("e")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := journal.ReadLastBeat(raw); err != nil || b.At != start.Add(want).UnixMilli() || b.Lifecycle != in.sum.Lifecycle {
			t.Errorf("after %v there is %+v, %v; want one at %v", after, b, err, want)
		}
	}
	beat(0, 0)
	beat(15*time.Second, 0)
	if _, err := in.report(journal.Row{Op: journal.State, State: journal.Draining}, start); err != nil {
		t.Fatal(err)
	}
	beat(30*time.Second, 30*time.Second)
	beat(59*time.Second, 30*time.Second)
	if rows := summary(t, dir, "e").Rows; rows != 2 {
		t.Errorf("%d rows are in the journal; want the first beat and the state", rows)
	}
	s.End("e")

	// A file that is there already costs only the record.
	if _, err := dir.CreateBeat("f", logs.KeepOwner); err != nil {
		t.Fatal(err)
	}
	begin(t, s, "f")
	if _, err := s.of("f").report(journal.Row{Op: journal.Beat}, start); err != nil {
		t.Errorf("a beat that cannot be kept: %v", err)
	}
}
