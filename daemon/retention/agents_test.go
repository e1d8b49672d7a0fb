package retention

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// spawn makes an agent in a sandbox, or with an own one.
func (b *box) spawn(id, sandboxID string) {
	b.t.Helper()
	n := ledger.NewAgent{ID: id, SandboxID: sandboxID, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}
	if sandboxID == "" {
		n.SandboxID, n.Own = "agent-"+id, &agboxv1.CreateSpec{Image: "img"}
	}
	_, err := b.book.SpawnAgent(b.t.Context(), n)
	b.must(err)
}

func (b *box) endAgent(id string) {
	b.t.Helper()
	a, _ := b.book.Agent(id)
	_, err := b.book.EmitAgent(b.t.Context(), a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agents.Completed, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{}},
	})
	b.must(err)
}

// agents lists the agents that are not deleted.
func (b *box) agents() string {
	var ids []string
	for _, a := range b.book.Agents(nil) {
		ids = append(ids, a.ID)
	}
	return strings.Join(ids, " ")
}

// stored lists the events of agents that are kept.
func (b *box) stored() string {
	b.t.Helper()
	c, err := b.book.OpenAgentEvents(b.t.Context(), "", 0)
	b.must(err)
	events, _, err := b.book.NextAgentEvents(b.t.Context(), c, 1000)
	b.must(err)
	var list []string
	for _, ev := range events {
		list = append(list, fmt.Sprint(ev.GetPosition(), "=", ev.GetEventId()))
	}
	return strings.Join(list, " ")
}

func TestOfManyEndedAgentsTheNewestAreKept(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	for _, id := range []string{"1", "2", "3", "4", "living"} {
		b.spawn(id, "s")
	}
	for _, id := range []string{"4", "1", "3"} { // not in the order of their begin
		b.endAgent(id)
		b.pass(time.Second)
	}
	b.want("agents right after the ends", b.agents(), "1 2 3 4 living")
	b.pass(time.Minute)
	b.want("agents after a minute", b.agents(), "1 2 3 living")
	b.endAgent("2")
	b.pass(time.Minute)
	b.want("agents after one more", b.agents(), "2 3 living")
}

func TestAnAgentIsRemovedSomeTimeAfterItsEnd(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("ended", "s")
	b.spawn("living", "s")
	b.endAgent("ended")
	b.pass(59 * time.Minute)
	b.want("agents before the time", b.agents(), "ended living")
	slow, err := b.book.OpenAgentEvents(t.Context(), "", 1)
	b.must(err)
	b.pass(time.Minute)
	b.want("agents", b.agents(), "living")
	b.want("events after the deletion", b.stored(), "1=ended/1 2=living/1 3=ended/2 4=ended/3")
	b.restart()
	b.pass(0)
	b.want("events in the end", b.stored(), "2=living/1")
	b.want("agents in the end", b.agents(), "living")
	_, err = b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: "ended", SandboxID: "s", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if !errdefs.IsAlreadyExists(err) {
		t.Errorf("the id of a removed agent can be used again: %v", err)
	}
	for after, gap := range []bool{false, true, true, true, false} {
		_, err := b.book.OpenAgentEvents(t.Context(), "", uint64(after))
		if errdefs.IsOutOfRange(err) != gap {
			t.Errorf("a watch after position %d: %v", after, err)
		}
	}
	if _, err := b.book.OpenAgentEvents(t.Context(), "living", 2); err != nil {
		t.Errorf("a watch of one agent: %v", err)
	}
	if _, _, err := b.book.NextAgentEvents(t.Context(), slow, 100); !errdefs.IsOutOfRange(err) {
		t.Errorf("a watch under way that was overtaken: %v", err)
	}
	b.endAgent("living")
	b.want("events after the removal", b.stored(), "2=living/1 5=living/2")
}

func TestAnAgentThatAUserRemovedIsKeptAsLong(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("a", "s")
	b.endAgent("a")
	checkpoint := filepath.Join(b.install.AgentCheckpoints("a"), "1.json")
	b.must(os.MkdirAll(filepath.Dir(checkpoint), 0o700))
	b.must(os.WriteFile(checkpoint, nil, 0o600))
	b.pass(0)
	if _, err := os.Stat(checkpoint); err != nil {
		t.Error(err)
	}
	_, err := b.book.DeleteAgent(t.Context(), "a")
	b.must(err)
	b.pass(59 * time.Minute)
	if _, err := os.Stat(checkpoint); !os.IsNotExist(err) {
		t.Errorf("the checkpoint of a removed agent: %v", err)
	}
	b.want("events before the time", b.stored(), "1=a/1 2=a/2 3=a/3")
	b.pass(time.Minute)
	b.want("events", b.stored(), "")
}

func TestAnAgentStaysUntilItsSandboxIsToGo(t *testing.T) {
	b := newBox(t)
	b.spawn("a", "")
	b.endAgent("a")
	b.pass(2 * time.Hour)
	b.want("agents while the sandbox stays", b.agents(), "a")
	_, err := b.book.RequestDelete(t.Context(), "agent-a")
	b.must(err)
	b.pass(0)
	b.want("agents after the sandbox", b.agents(), "")
}

// TestARemovedAgentIsKnownWhileThereIsOneThatItSpawned: a wait for a tree finds it by that.
func TestARemovedAgentIsKnownWhileThereIsOneThatItSpawned(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	parent := ""
	for _, id := range []string{"root", "middle", "leaf"} {
		_, err := b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, SandboxID: "s", Parent: parent, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
		b.must(err)
		parent = id
	}
	b.endAgent("middle")
	leaf, _ := b.book.Agent("leaf")
	_, err := b.book.EmitAgent(t.Context(), leaf.Record, &agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
		Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: "root", From: "middle"}},
	})
	b.must(err)
	for range 3 {
		b.pass(time.Hour)
	}
	b.want("agents", b.agents(), "root leaf")
	b.restart()
	b.pass(time.Hour)
	wait := b.book.WaitForEnd("root", true)
	defer wait.Close()
	b.endAgent("root")
	if _, more := wait.Take(); !more {
		t.Error("a wait for the tree does not find the agent below the removed one")
	}
	b.endAgent("leaf")
	for range 3 {
		b.pass(time.Hour)
	}
	b.want("agents in the end", b.agents(), "")
	b.want("events in the end", b.stored(), "")
}

// TestTheEventsOfALivingAgentAreBounded: an agent can live for months.
func TestTheEventsOfALivingAgentAreBounded(t *testing.T) {
	b := newBox(t)
	b.keeper.rules.MaxEvents = 40
	b.ready("s")
	b.spawn("long", "s")
	b.spawn("short", "s")
	live := func(times int) {
		for range times {
			_, err := b.book.OpenStream(t.Context(), "long", "news")
			b.must(err)
			_, err = b.book.CloseStream(t.Context(), "long", "news")
			b.must(err)
		}
	}
	events := func() int { return len(strings.Fields(b.stored())) - 1 }
	live(100)
	_, err := b.book.OpenStream(t.Context(), "long", "stays")
	b.must(err)
	open, err := b.book.OpenAgentEvents(t.Context(), "long", 5)
	b.must(err)
	b.pass(30 * time.Second)
	if got := events(); got != 202 {
		t.Errorf("after half a minute %d events are left", got)
	}
	was, _ := b.book.Agent("long")
	b.pass(time.Minute)
	// The first event, and the newest.
	if got := events(); got != 5 {
		t.Errorf("%d events are left: %s", got, b.stored())
	}
	live(17)
	b.pass(2 * time.Minute)
	if got := events(); got != 39 {
		t.Errorf("%d events are left of fewer than the maximum", got)
	}
	live(1)
	b.pass(2 * time.Minute)
	if got := events(); got > 10 {
		t.Errorf("%d events are left in the end: %s", got, b.stored())
	}
	for of, want := range map[string]bool{"": true, "long": true, "short": false} {
		if _, err := b.book.OpenAgentEvents(t.Context(), of, 5); errdefs.IsOutOfRange(err) != want {
			t.Errorf("a watch of %q after position 5: %v", of, err)
		}
		if _, err := b.book.OpenAgentEvents(t.Context(), of, 0); err != nil {
			t.Errorf("a watch of %q from the beginning: %v", of, err)
		}
	}
	if _, _, err := b.book.NextAgentEvents(t.Context(), open, 100); !errdefs.IsOutOfRange(err) {
		t.Errorf("a watch under way that was overtaken: %v", err)
	}
	now, _ := b.book.Agent("long")
	b.restart()
	again, _ := b.book.Agent("long")
	if !reflect.DeepEqual(now.Record, again.Record) || !slices.Equal(was.Streams, again.Streams) {
		t.Errorf("before a restart the agent is %+v, afterwards %+v", now.Record, again.Record)
	}
}

// TestADeletedAgentWithADamagedEventIsDropped: the other events tell that it is deleted.
func TestADeletedAgentWithADamagedEventIsDropped(t *testing.T) {
	b := newBox(t)
	b.ready("s")
	b.spawn("a", "s")
	_, err := b.book.SpawnAgent(t.Context(), ledger.NewAgent{ID: "b", Name: "to-be-damaged", SandboxID: "s", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	b.must(err)
	b.endAgent("b")
	_, err = b.book.DeleteAgent(t.Context(), "b")
	b.must(err)
	b.end()
	raw, err := os.ReadFile(b.install.Database())
	b.must(err)
	const name = "\x0dto-be-damaged" // with its length
	if !bytes.Contains(raw, []byte(name)) {
		t.Fatal("the event is not in the database")
	}
	b.must(os.WriteFile(b.install.Database(), bytes.ReplaceAll(raw, []byte(name), []byte("\x7fto-be-damaged")), 0o600))
	b.open()
	b.pass(59 * time.Minute)
	b.want("events before the time", b.stored(), "1=a/1 3=b/2 4=b/3")
	b.pass(time.Minute)
	b.want("events", b.stored(), "1=a/1")
	if _, err := b.book.PastAgent(t.Context(), "b"); !errdefs.IsNotFound(err) {
		t.Errorf("the agent in the end: %v", err)
	}
}
