package ledger

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/machine"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// child is an agent with a parent.
func child(id, parent string) NewAgent {
	n := agentOf(id, "", "s")
	n.Parent = parent
	return n
}

func TestAnAgentKnowsItsChildren(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	c := spawn(t, l, child("c", "a"))
	spawn(t, l, child("d", "b"))
	check := func(when string, want map[string][]string) {
		t.Helper()
		for _, id := range []string{agents.Init, "a", "b", "c", "d"} {
			if got := idsOf(l.Children(id)); !slices.Equal(got, want[id]) {
				t.Errorf("%s: the children of %s are %v; want %v", when, id, got, want[id])
			}
		}
	}
	check("after the spawns", map[string][]string{agents.Init: {"a"}, "a": {"b", "c"}, "b": {"d"}})
	emitAgent(t, l, c.Record, agents.Reaped("test"))
	if _, err := l.DeleteAgent(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	check("after a deletion", map[string][]string{agents.Init: {"a"}, "a": {"b"}, "b": {"d"}})
	stop()
	l, _ = open(t, dir)
	check("after a restart", map[string][]string{agents.Init: {"a"}, "a": {"b"}, "b": {"d"}})
}

func TestOnlyALivingAgentGetsAChild(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	_, err := l.SpawnAgent(t.Context(), child("b", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, agents.Reaped("test"))
	_, err = l.SpawnAgent(t.Context(), child("b", "a"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	if _, exists := l.Agent("b"); exists {
		t.Error("an agent that has ended got a child")
	}
}

// next is the step that follows for an agent in a READY sandbox.
func next(l *Ledger, id string) agents.Step {
	a, _ := l.Agent(id)
	return agents.Next(a.Record, agents.Seen{Sandbox: agents.SandboxReady, Exec: agents.ExecRunning, Kin: l.Kin(a)}, agents.RulesOf(a.Spec), l.now())
}

// end ends an agent that runs nothing.
func end(t *testing.T, l *Ledger, id string, state agboxv1.AgentState) {
	t.Helper()
	a, _ := l.Agent(id)
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: state, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Message: "test"}},
	})
}

func TestTheNearestLivingAncestorAdopts(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	spawn(t, l, child("c", "b"))
	spawn(t, l, child("d", "c"))
	end(t, l, "c", agents.Completed)
	late := next(l, "d")
	if late.Event.GetReparent().GetParent() != "b" {
		t.Fatalf("the step after the end of its parent is %v", late)
	}
	end(t, l, "b", agents.Failed)
	d, _ := l.Agent("d")
	if after := emitAgent(t, l, d.Record, late.Event); after.Parent != "c" {
		t.Errorf("an agent that has ended meanwhile adopted it: %s", after.Parent)
	}
	if after := emitAgent(t, l, d.Record, next(l, "d").Event); after.Parent != "a" {
		t.Errorf("it was adopted by %s", after.Parent)
	}
	end(t, l, "a", agents.Aborted)
	end(t, l, "d", agents.Completed) // before its round saw the end of its parent
	if d, _ := l.Agent("d"); d.Parent != agents.Init || !d.Over() {
		t.Errorf("it ended as a child of %s", d.Parent)
	}
	if in := idsOf(l.Children("c")); len(in) != 0 {
		t.Errorf("its first parent still has the children %v", in)
	}
}

func TestAParentIsNotRemovedBeforeItsChildren(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	named := child("b", "a")
	named.Name = "worker"
	spawn(t, l, named)
	spawn(t, l, child("c", "b"))
	end(t, l, "b", agents.Completed)
	end(t, l, "a", agents.Completed)
	_, err := l.DeleteAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_HAS_CHILDREN)
	if want := `Agent a has children: worker. Remove them first, or remove the whole tree with "agbox agent rm --cascade a".`; err.Error() != want {
		t.Errorf("the error says %q; want %q", err, want)
	}
	if _, err := l.DeleteAgentTree(t.Context(), "a"); err == nil {
		t.Error("a living descendant was removed")
	}
	if _, exists := l.Agent("b"); !exists {
		t.Error("a tree was removed in part")
	}
	end(t, l, "c", agents.Completed) // is adopted by init before
	removed, err := l.DeleteAgentTree(t.Context(), "a")
	if got := idsOf(removed); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("removed %v, %v", got, err)
	}
	if _, err := l.DeleteAgent(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}

// TestAnAgentIsNotRemovedWithASandboxInWhichOthersRun: they may be its children no more, because its
// parent has adopted them.
func TestAnAgentIsNotRemovedWithASandboxInWhichOthersRun(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("p", "", "s"))
	owner := agentOf("owner", "", "agent-owner")
	owner.Parent, owner.Own = "p", &agboxv1.CreateSpec{Image: "img"}
	spawn(t, l, owner)
	for _, id := range []string{"guest", "second"} {
		n := agentOf(id, "", "agent-owner")
		n.Parent = "owner"
		spawn(t, l, n)
	}
	end(t, l, "owner", agents.Completed)
	for _, id := range []string{"guest", "second"} {
		a, _ := l.Agent(id)
		emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
			Type:    agboxv1.AgentEventType_AGENT_REPARENTED,
			Details: &agboxv1.AgentEvent_Reparent{Reparent: &agboxv1.AgentReparented{Parent: "p", From: "owner"}},
		})
	}
	end(t, l, "second", agents.Completed)
	_, single := l.DeleteAgent(t.Context(), "owner")
	_, tree := l.DeleteAgentTree(t.Context(), "owner")
	for _, err := range []error{single, tree} {
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_HAS_AGENTS)
		if !strings.Contains(fmt.Sprint(err), "not ended: guest. Wait") {
			t.Errorf("the refusal is %v", err)
		}
	}
	if sb, _ := l.Sandbox("agent-owner"); sb.Want == machine.WantDeleted {
		t.Error("the sandbox is to be removed")
	}
	end(t, l, "guest", agents.Completed) // the remedy
	if _, err := l.DeleteAgent(t.Context(), "owner"); err != nil {
		t.Error(err)
	}
	if sb, _ := l.Sandbox("agent-owner"); sb.Want != machine.WantDeleted {
		t.Error("the sandbox stays without agents")
	}
}

// TestAnAgentIsRemovedWhoseSandboxIsGoing: the others there end with it, whatever becomes of the
// record.
func TestAnAgentIsRemovedWhoseSandboxIsGoing(t *testing.T) {
	l := fresh(t)
	owner := agentOf("owner", "", "agent-owner")
	owner.Own = &agboxv1.CreateSpec{Image: "img"}
	spawn(t, l, owner)
	spawn(t, l, agentOf("guest", "", "agent-owner"))
	end(t, l, "owner", agents.Completed)
	if _, err := l.RequestDelete(t.Context(), "agent-owner"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DeleteAgent(t.Context(), "owner"); err != nil {
		t.Error(err)
	}
}

// after is an agent that follows others.
func after(id string, others ...string) NewAgent {
	n := agentOf(id, id, "s")
	n.Spec.After = others
	return n
}

func TestAFollowerBeginsOnceAllOthersHaveCompleted(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	_, err := l.SpawnAgent(t.Context(), after("x", "nobody"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	_, err = l.SpawnAgent(t.Context(), after("x", "x"))
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	spawn(t, l, after("a"))
	spawn(t, l, after("b", "a"))
	spawn(t, l, after("c", "a", "a"))
	d := spawn(t, l, after("d", "b", "c"))
	if again := spawn(t, l, after("d", "b", "c")); again.LastSequence != d.LastSequence {
		t.Error("a repeated spawn changed it")
	}
	_, err = l.SpawnAgent(t.Context(), after("root", agents.Init))
	if err == nil {
		t.Error("an agent follows the root, which never ends")
	}
	for _, id := range []string{"b", "c", "d"} {
		if step := next(l, id); step.Do != agents.Rest {
			t.Errorf("%s: %v", id, step)
		}
	}
	end(t, l, "a", agents.Completed)
	_, err = l.DeleteAgent(t.Context(), "a")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	stop()
	l, _ = open(t, dir)
	if got := idsOf(l.Followers("b")); !slices.Equal(got, []string{"d"}) {
		t.Errorf("after a restart b is followed by %v", got)
	}
	for id, want := range map[string]agents.Verb{"b": agents.Emit, "c": agents.Emit, "d": agents.Rest} {
		if step := next(l, id); step.Do != want {
			t.Errorf("%s: %v", id, step)
		}
	}
	end(t, l, "b", agents.Completed)
	end(t, l, "c", agents.Aborted)
	if done := next(l, "d").Event.GetDone(); done.GetErrorCode() != "DEPENDENCY_FAILED" || done.GetMessage() != "It was to follow agent c, which is ABORTED." {
		t.Errorf("d ends with %v", done)
	}
	end(t, l, "d", agents.Failed)
	if got := idsOf(l.Followers("c")); len(got) != 0 {
		t.Errorf("an agent that has ended still follows: %v", got)
	}
	if _, err := l.DeleteAgent(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}

func TestAStrongerKillReplacesAWeakerOne(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	for _, cascade := range []agboxv1.KillCascade{0, agboxv1.KillCascade_KILL_CASCADE_TREE} {
		a, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_TERMINATE, Cascade: cascade})
		if err != nil || a.Kill.GetCascade() != cascade {
			t.Fatalf("%v: %v, %v", cascade, a.Kill, err)
		}
		if got := next(l, "b").Event.GetType() == agboxv1.AgentEventType_AGENT_KILL_REQUESTED; got != (cascade != 0) {
			t.Errorf("a kill with %v ends the child: %v", cascade, got)
		}
	}
}

func TestAPauseRemembersHowTheSandboxWas(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	sb, _ := l.Sandbox("s")
	a := spawn(t, l, agentOf("a", "one", "s"))
	emitAgent(t, l, a.Record, begun(1))
	a, err := l.PauseAgent(t.Context(), "a", "")
	if err != nil || a.Away.GetSandboxId() != "s" || !a.Away.GetReadyAt().AsTime().Equal(sb.ReadyAt) || a.AwaySince.IsZero() {
		t.Fatalf("%+v, %v", a.Away, err)
	}
	before := a.Away
	a = pausedBy(t, l, a, agboxv1.PauseReason_PAUSE_REASON_IDLE)
	if a.Away != before {
		t.Error("a second reason for the same pause has replaced the picture")
	}
}

// meanwhile returns who held the resources of an agent, which must be known for the whole time.
func meanwhile(t *testing.T, l *Ledger, id string) []agents.Passed {
	t.Helper()
	list, whole, err := l.HeldMeanwhile(t.Context(), now(t, l, id))
	if err != nil || !whole {
		t.Fatalf("known for the whole time: %v, %v", whole, err)
	}
	return list
}

func TestAPausedAgentLearnsWhoHeldItsResources(t *testing.T) {
	l := workers(t, "oldest", "old", "middle", "young")
	acquires(t, l, "oldest", granted, "x")
	acquires(t, l, "young", granted, "file:/other", "db")
	before := now(t, l, "young").Holds[0].Fence
	acquires(t, l, "middle", waits, "db")
	acquires(t, l, "old", waits, "db")
	ends(t, l, "young")
	acquires(t, l, "middle", granted, "db")
	fence := now(t, l, "middle").Holds[0].Fence
	if _, err := l.ReleaseLeases(t.Context(), now(t, l, "middle").Record, nil); err != nil {
		t.Fatal(err)
	}
	got := meanwhile(t, l, "old")
	if len(got) != 1 || got[0].Resource != "db" || got[0].Times != 1 || got[0].Fence != fence {
		t.Fatalf("it learns %+v; want db, once, %d", got, fence)
	}
	want := []agents.PassedTo{{AgentID: "middle", Times: 1, Fence: fence}, {AgentID: "young", Fence: before}}
	if !slices.Equal(got[0].Holders, want) {
		t.Errorf("the holders are %+v; want %+v", got[0].Holders, want)
	}
	if got := meanwhile(t, l, "oldest"); len(got) > 0 {
		t.Errorf("an agent whose resource nobody else had learns %+v", got)
	}
}

// TestWhatAnAgentLostToWaitDieWasHeld has an agent wait for another that dies: only the event
// about that says what it had.
func TestWhatAnAgentLostToWaitDieWasHeld(t *testing.T) {
	l := workers(t, "older", "old", "young")
	acquires(t, l, "older", granted, "x")
	acquires(t, l, "young", granted, "db")
	before := now(t, l, "young").Holds[0].Fence
	acquires(t, l, "old", waits, "db")
	acquires(t, l, "young", dies, "x")
	got := meanwhile(t, l, "old")
	if len(got) != 1 || !slices.Equal(got[0].Holders, []agents.PassedTo{{AgentID: "young", Fence: before}}) {
		t.Errorf("it learns %+v", got)
	}
}
