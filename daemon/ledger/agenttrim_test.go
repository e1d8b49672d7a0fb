package ledger

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// TestEventsOfOldCheckpointsAreRemovedAndChangeNothing: an agent that saves its work at each step
// for days has as many events as one that has just begun.
func TestEventsOfOldCheckpointsAreRemovedAndChangeNothing(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	create(t, l, "s", "")
	a := spawn(t, l, agentOf("a", "", "s"))
	a = emitAgent(t, l, a.Record, begun(1))
	for seq := range uint64(40) {
		kind := agboxv1.CheckpointKind_CHECKPOINT_KIND_STEP
		if seq%3 == 0 {
			kind = agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE
		}
		a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_CHECKPOINT, Incarnation: 1, JournalUpto: seq + 1,
			Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{Seq: seq + 1, Kind: kind}},
		})
	}
	c, err := l.OpenAgentEvents(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	events, _, err := l.NextAgentEvents(t.Context(), c, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 + agents.KeptCheckpoints; len(events) != want {
		t.Errorf("there are %d events; want %d", len(events), want)
	}
	stop()
	l, _ = open(t, dir)
	again, _ := l.Agent("a")
	if len(again.Checkpoints) != agents.KeptCheckpoints || again.Checkpoint().GetSeq() != 40 || again.Incarnation.JournalUpto != 40 {
		t.Errorf("after a restart the agent is %+v", again.Record)
	}
	if !reflect.DeepEqual(a.CheckpointEvents, again.CheckpointEvents) || a.Uncounted != again.Uncounted || a.Digested != again.Digested || a.LastSequence != again.LastSequence {
		t.Errorf("before a restart the agent is %+v, afterwards %+v", a.Record, again.Record)
	}
}

// TestAWatchOfOneAgentReadsNoOther: there may be thousands.
func TestAWatchOfOneAgentReadsNoOther(t *testing.T) {
	l := fresh(t)
	create(t, l, "s", "")
	spawn(t, l, agentOf("a", "", "s"))
	for i := range 20 {
		spawn(t, l, agentOf(fmt.Sprint("other-", i), "", "s"))
	}
	if _, err := l.OpenStream(t.Context(), "a", "news"); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[uint64][]string{0: {"a/1", "a/2"}, 1: {"a/2"}, 10: {"a/2"}, 22: nil} {
		c, err := l.OpenAgentEvents(t.Context(), "a", after)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for range 2 { // pages of one event: none is of another agent
			events, _, err := l.NextAgentEvents(t.Context(), c, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range events {
				got = append(got, ev.GetEventId())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %d it is sent %v; want %v", after, got, want)
		}
	}
}
