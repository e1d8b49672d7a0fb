package machine

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// aHistory is of a sandbox in which n execs run at the same time, and then end.
func aHistory(n int) (events []*agboxv1.SandboxEvent) {
	add := func(typ agboxv1.EventType, exec string) {
		events = append(events, &agboxv1.SandboxEvent{
			SandboxId: "s", Sequence: uint64(len(events) + 1), EventType: typ,
			Details: &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: exec}},
		})
	}
	add(agboxv1.EventType_SANDBOX_ACCEPTED, "")
	add(agboxv1.EventType_SANDBOX_READY, "")
	for _, typ := range []agboxv1.EventType{agboxv1.EventType_EXEC_STARTED, agboxv1.EventType_EXEC_FINISHED} {
		for i := range n {
			add(typ, fmt.Sprint("e", i))
		}
	}
	return events
}

func foldTogether(events []*agboxv1.SandboxEvent) Record {
	var f Folding
	for _, ev := range events {
		f.Add(ev)
	}
	return f.Record()
}

func TestAHistoryFoldsToTheSameRecordAtOnceAndOneByOne(t *testing.T) {
	events := aHistory(20)
	for n := range events {
		one := foldAll(events[:n])
		if all := foldTogether(events[:n]); !reflect.DeepEqual(all, one) {
			t.Fatalf("after %d events the record is %+v, and one by one %+v", n, all, one)
		}
	}
}

func TestFoldLeavesTheRecordThatOthersRead(t *testing.T) {
	events := aHistory(3)
	before := foldTogether(events[:4])
	running := len(before.Execs)
	for _, ev := range events[4:] {
		Fold(before, ev)
	}
	if len(before.Execs) != running {
		t.Errorf("%d execs run in the record, want %d", len(before.Execs), running)
	}
}

func TestFoldingAHistoryCopiesNothingForEachEvent(t *testing.T) {
	allocated := func(n int) uint64 {
		events := aHistory(n)
		var counts []uint64
		for range 5 { // what the runtime itself allocates meanwhile differs
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			foldTogether(events)
			runtime.ReadMemStats(&after)
			counts = append(counts, after.TotalAlloc-before.TotalAlloc)
		}
		return slices.Min(counts)
	}
	few, many := allocated(500), allocated(4000)
	if many > 16*few {
		t.Errorf("500 execs take %d bytes and 4000 take %d, want about 8 times as many", few, many)
	}
}
