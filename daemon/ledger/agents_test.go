package ledger

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// agentOf is an agent with a name for a sandbox.
func agentOf(id, name, sandboxID string) NewAgent {
	return NewAgent{ID: id, Name: name, SandboxID: sandboxID, Spec: &agboxv1.AgentSpec{Name: name, Command: []string{"true"}}}
}

func spawn(t testing.TB, l *Ledger, n NewAgent) Agent {
	t.Helper()
	a, err := l.SpawnAgent(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func emitAgent(t testing.TB, l *Ledger, seen agents.Record, ev *agboxv1.AgentEvent) Agent {
	t.Helper()
	a, err := l.EmitAgent(t.Context(), seen, ev)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func begun(n uint32) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: n,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: agents.ExecID("a", n), SandboxId: "s"}},
	}
}

func TestAnAgentAndItsOwnSandboxAreAcceptedTogether(t *testing.T) {
	l := fresh(t)
	create(t, l, "other", "taken")
	n := agentOf("a", "", "agent-a")
	n.Own = &agboxv1.CreateSpec{Image: "img", Name: "taken"}
	_, err := l.SpawnAgent(t.Context(), n)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	if _, ok := l.Agent("a"); ok {
		t.Error("the agent was accepted without its sandbox")
	}
	n.Own.Name = "free"
	a := spawn(t, l, n)
	sb, ok := l.Sandbox("agent-a")
	if !ok || a.SandboxID != "agent-a" || !a.Owned || sb.Name != "free" {
		t.Errorf("agent %+v, sandbox %+v %v", a.Record, sb.Record, ok)
	}
}

func TestAgentsAreThereAgainAfterARestart(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	a = emitAgent(t, l, a.Record, begun(1))
	spawn(t, l, agentOf("b", "two", "s"))
	if _, err := l.RequestKill(t.Context(), "b", &agboxv1.AgentKill{}); err != nil {
		t.Fatal(err)
	}
	b, _ := l.Agent("b")
	stop()
	again, _ := open(t, dir)
	for _, want := range []Agent{a, b} {
		got, ok := again.Agent(want.ID)
		if (got.Kill != nil) != (want.Kill != nil) {
			t.Errorf("agent %s: its kill is %v after the restart", want.ID, got.Kill)
		}
		got.Kill = want.Kill // messages are not compared by their internal state
		if !ok || !reflect.DeepEqual(got.Record, want.Record) || got.Spec.GetName() != want.Spec.GetName() {
			t.Errorf("after the restart: %+v; before: %+v", got.Record, want.Record)
		}
	}
	if ids := again.AgentsIn("s"); len(ids) != 2 || ids[0].ID != "a" {
		t.Errorf("agents of the sandbox: %v", ids)
	}
}

func TestASpawnIsRepeatableAndOtherwiseRefused(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	first := spawn(t, l, agentOf("a", "one", "s"))
	if again := spawn(t, l, agentOf("a", "one", "s")); again.LastSequence != first.LastSequence {
		t.Error("a repeated spawn added an event")
	}
	_, err := l.SpawnAgent(t.Context(), agentOf("a", "other", "s"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	_, err = l.SpawnAgent(t.Context(), agentOf("b", "one", "s"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
	_, err = l.SpawnAgent(t.Context(), agentOf("b", "two", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
}

// TestConcurrentSpawnsRespectNamesAndLimits: the store commits concurrent calls in
// batches, in which each must see the agents of those before it.
func TestConcurrentSpawnsRespectNamesAndLimits(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	var group sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for i := range 8 {
		group.Go(func() {
			if _, err := l.SpawnAgent(context.Background(), agentOf(fmt.Sprint("same-", i), "same", "s")); err == nil {
				mu.Lock()
				accepted++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if accepted != 1 {
		t.Errorf("%d agents got the same name", accepted)
	}
	for i := range maxAgentsInSandbox - 1 {
		group.Go(func() { _, _ = l.SpawnAgent(context.Background(), agentOf(fmt.Sprint("many-", i), "", "s")) })
	}
	group.Wait()
	_, err := l.SpawnAgent(t.Context(), agentOf("one-more", "", "s"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_LIMIT)
	if n := len(l.AgentsIn("s")); n != maxAgentsInSandbox {
		t.Errorf("%d agents in the sandbox; want %d", n, maxAgentsInSandbox)
	}
}

func TestADecisionFromAnOldRecordIsDropped(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	seen := spawn(t, l, agentOf("a", "", "s"))
	if _, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{}); err != nil {
		t.Fatal(err)
	}
	if after := emitAgent(t, l, seen.Record, begun(1)); after.Incarnation != nil {
		t.Error("an incarnation began although the agent was killed since the decision")
	}
}

func TestTheEventsOfAgentsAreReadInTheirOrder(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	changed := l.AgentChanged("")
	for i := range 5 {
		spawn(t, l, agentOf(fmt.Sprint("a-", i), "", "s"))
	}
	<-changed
	var seen []string
	c, err := l.OpenAgentEvents(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var events []*agboxv1.AgentEvent
		if events, more, err = l.NextAgentEvents(t.Context(), c, 2); err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			seen = append(seen, ev.GetAgentId())
		}
	}
	if want := []string{"a-0", "a-1", "a-2", "a-3", "a-4"}; !reflect.DeepEqual(seen, want) {
		t.Errorf("events of %v; want %v", seen, want)
	}
	_, err = l.OpenAgentEvents(t.Context(), "", 99)
	wantReason(t, err, agboxv1.ErrorReason_CURSOR_OUT_OF_RANGE)
}

// wantWork checks the stored work of agent a.
func wantWork(t *testing.T, l *Ledger, want string) {
	t.Helper()
	if got, err := l.AgentWork(t.Context(), "a"); err != nil || string(got) != want {
		t.Errorf("the work is %q, %v; want %q", got, err, want)
	}
}

func TestOnlyAnAgentThatHasEndedIsDeleted(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	n := agentOf("a", "one", "s")
	n.Work = []byte("fix it")
	a := spawn(t, l, n)
	wantWork(t, l, "fix it")
	_, err := l.DeleteAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agents.Aborted, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{}},
	})
	if _, err := l.DeleteAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	stop()
	again, _ := open(t, dir)
	wantWork(t, again, "fix it")
	if err := again.DropAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	wantWork(t, again, "")
	if _, ok := again.Agent("a"); ok {
		t.Error("a deleted agent is there after a restart")
	}
	_, err = again.SpawnAgent(t.Context(), agentOf("a", "one", "s"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_ID_ALREADY_EXISTS)
}

func TestASandboxIsNotDeletedUnderItsAgents(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	var left []Agent
	for i := range 12 {
		left = append(left, spawn(t, l, agentOf(fmt.Sprintf("a-%02d", i), "", "s")))
	}
	_, err := l.RequestDeletion(t.Context(), "s", Deletion{SpareAgents: true})
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS)
	if want := "not ended: a-00, a-01, a-02, a-03, a-04, a-05, a-06, a-07, a-08, a-09, .... End"; !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("the refusal is %q; want %q in it", err, want)
	}
	for _, a := range left {
		emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_ENDED, State: agents.Aborted, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{}},
		})
	}
	if _, err := l.RequestDeletion(t.Context(), "s", Deletion{SpareAgents: true}); err != nil {
		t.Error(err)
	}
}

// TestADeletionAndASpawnExcludeEachOther has both at the same time, often in one batch.
func TestADeletionAndASpawnExcludeEachOther(t *testing.T) {
	l := fresh(t)
	for i := range 50 {
		id := fmt.Sprint("s-", i)
		ready(t, l, id)
		var deleted, spawned error
		var wg sync.WaitGroup
		wg.Go(func() { _, deleted = l.RequestDeletion(t.Context(), id, Deletion{SpareAgents: true}) })
		wg.Go(func() { _, spawned = l.SpawnAgent(t.Context(), agentOf(fmt.Sprint("a-", i), "", id)) })
		wg.Wait()
		if (deleted == nil) == (spawned == nil) {
			t.Fatalf("the deletion: %v; the spawn: %v", deleted, spawned)
		}
	}
}

// TestASpawnAfterAnAgentAndTheRemovalOfThatExcludeEachOther has both at the same time, often in
// one batch.
func TestASpawnAfterAnAgentAndTheRemovalOfThatExcludeEachOther(t *testing.T) {
	l := fresh(t)
	for i := range 50 {
		id := fmt.Sprint("s-", i)
		ready(t, l, id)
		first := agentOf(fmt.Sprint("a-", i), "", id)
		spawn(t, l, first)
		end(t, l, first.ID, agents.Completed)
		after := agentOf(fmt.Sprint("b-", i), "", id)
		after.Spec.After = []string{first.ID}
		var removed, spawned error
		var wg sync.WaitGroup
		wg.Go(func() { _, removed = l.DeleteAgent(t.Context(), first.ID) })
		wg.Go(func() { _, spawned = l.SpawnAgent(t.Context(), after) })
		wg.Wait()
		if (removed == nil) == (spawned == nil) {
			t.Fatalf("the removal: %v; the spawn: %v", removed, spawned)
		}
	}
}
