package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/ledger"
)

// tidy counts how often files of ended agents are looked for, and how often those of all are
// listed. metas are the agents that have one, and fails is the error of the next removal.
type tidy struct {
	Agents
	looks, lists int
	metas        []string
	fails        error
}

// unlinked has no links.
type unlinked struct{ Links }

func (unlinked) Connected(string) bool { return false }

func (t *tidy) RemoveLeft(ledger.Agent) (int, error) { t.looks++; return 0, nil }

func (t *tidy) Metas() []string { t.lists++; return t.metas }

func (t *tidy) RemoveMeta(id string) (bool, error) {
	if err := t.fails; err != nil {
		t.fails = nil
		return false, err
	}
	t.metas = slices.DeleteFunc(t.metas, func(other string) bool { return other == id })
	return true, nil
}

func TestAnEndedAgentCostsAResyncNothing(t *testing.T) {
	b, files := guesttest.New(t), new(tidy)
	l := &Loop{ledger: b.Ledger, agents: files, links: unlinked{}, log: b.Log, agentsAtWork: make(map[string]*agentWork)}
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "x", SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Ledger.EmitAgent(t.Context(), a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agboxv1.AgentState_AGENT_STATE_ABORTED,
		Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// No pool of workers is there, so a round that is asked for would panic.
	resync := func(looks int) {
		t.Helper()
		if err := l.cleanUpAgents(t.Context(), nil); err != nil || files.looks != looks || len(l.agentsAtWork) != 0 {
			t.Errorf("%v; %d looks, want %d; %d agents are known, want none", err, files.looks, looks, len(l.agentsAtWork))
		}
		l.enqueueAgentsOf("a")
	}
	resync(1)
	resync(1)
	l.ReapAgents() // somebody asks for it
	resync(2)
	if _, err := b.Ledger.DeleteAgent(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	resync(2)
}

// TestFilesOfUnknownAgentsAreLookedForOnce: a list of all that have files, every 10 s, would grow
// with the agents.
func TestFilesOfUnknownAgentsAreLookedForOnce(t *testing.T) {
	b, files := guesttest.New(t), &tidy{metas: []string{"ghost"}, fails: errors.New("not now")}
	l := &Loop{ledger: b.Ledger, agents: files, log: b.Log, agentsAtWork: make(map[string]*agentWork)}
	for i, want := range []int{1, 2, 2, 2} {
		if err := l.cleanUpAgents(t.Context(), nil); err != nil || files.lists != want || len(files.metas) != max(0, 1-i) {
			t.Errorf("resync %d: %v; %d lists, want %d; files of %v", i+1, err, files.lists, want, files.metas)
		}
	}
	files.metas = []string{"ghost"}
	if _, removed := l.ReapAgents(); removed != 1 || files.lists != 3 {
		t.Errorf("a request removes %d files, with %d lists", removed, files.lists)
	}
}

// TestAResyncLooksAtSoManyAgentsInTurn: however many wait, it costs the same, and none is left
// out.
func TestAResyncLooksAtSoManyAgentsInTurn(t *testing.T) {
	of := func(positions ...uint64) (list []ledger.Place) {
		for _, p := range positions {
			list = append(list, ledger.Place{Position: p})
		}
		return list
	}
	var all []ledger.Place
	for p := range uint64(perResync*5/2 + 1) {
		all = append(all, of(3*p+7)...)
	}
	var r rota
	looked := make(map[uint64]int)
	for range 5 {
		turn := r.next(all)
		if len(turn) != perResync {
			t.Fatalf("a resync looks at %d agents, want %d", len(turn), perResync)
		}
		for _, a := range turn {
			looked[a.Position]++
		}
		all = slices.DeleteFunc(all, func(a ledger.Place) bool { return a.Position == r.after }) // it has ended meanwhile
	}
	for _, a := range all {
		if n := looked[a.Position]; n < 1 || n > 3 {
			t.Errorf("the agent at position %d was looked at %d times in 5 resyncs", a.Position, n)
		}
	}
	for range 2 {
		if turn := r.next(of(1, 2)); len(turn) != 2 {
			t.Errorf("of two agents %d are looked at", len(turn))
		}
	}
}

// TestSoManyKeptSandboxesOfEndedAgentsGetRoundsInAResync: work that nobody has brought home may stay
// in the sandboxes of thousands of agents.
func TestSoManyKeptSandboxesOfEndedAgentsGetRoundsInAResync(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, unlinked{})
	l.agents = new(tidy)
	var spawned sync.WaitGroup
	for i := range perResync * 3 / 2 {
		spawned.Go(func() {
			id := fmt.Sprint("kept-", i)
			n := ledger.NewAgent{ID: id, SandboxID: "of-" + id, Own: &agboxv1.CreateSpec{Image: "img"}, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}
			a, err := b.Ledger.SpawnAgent(t.Context(), n)
			if err == nil {
				_, err = b.Ledger.EmitAgent(t.Context(), a.Record, agents.Reaped("test"))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	spawned.Wait()
	var all []string // oldest first
	for _, p := range b.Ledger.Undone() {
		all = append(all, p.ID)
	}
	resync := func(what string, want ...string) {
		t.Helper()
		if err := l.cleanUpAgents(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		l.want(what, all, want...)
	}
	resync("the first resync", slices.Clone(all[:perResync])...)
	resync("the second resync", slices.Concat(all[perResync:], all[:perResync/2])...)
}

// linked has a link to each sandbox.
type linked struct{ Links }

func (linked) Connected(string) bool { return true }

// rounds counts which agents get rounds from a loop whose rounds do nothing.
type rounds struct {
	*Loop
	t    *testing.T
	done chan string
}

func countRounds(t *testing.T, b *guesttest.Bench, l Links) *rounds {
	done := make(chan string, 2*perResync)
	all := newWorkers(time.Now, func(_ context.Context, turn *workTurn) time.Time {
		done <- turn.ID
		return time.Time{}
	})
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(all.Wait)
	t.Cleanup(stop)
	all.Begin(ctx)
	return &rounds{&Loop{ledger: b.Ledger, links: l, log: b.Log, workers: all, sandboxes: make(map[string]*sandboxWork)}, t, done}
}

// want compares the agents that have got rounds with those that should have. all are the agents.
func (r *rounds) want(what string, all []string, want ...string) {
	r.t.Helper()
	var got []string
	for _, id := range all {
		for r.workers.Busy(agentKey(id)) {
			runtime.Gosched()
		}
	}
	for len(r.done) > 0 {
		got = append(got, <-r.done)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		r.t.Errorf("%s: rounds of %v, want those of %v", what, got, want)
	}
}

// TestARoundOfAReadySandboxLeavesThoseThatWait: a round follows each exec, and hundreds of agents
// may wait there.
func TestARoundOfAReadySandboxLeavesThoseThatWait(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, unlinked{})
	l.sandboxes["a"] = &sandboxWork{id: "a"}
	all := []string{"waits-1", "waits-2", "works"}
	for _, id := range all {
		a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
		if err == nil && id == "works" {
			_, err = b.Ledger.EmitAgent(t.Context(), a.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
				Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{SandboxId: "a", ExecId: "x"}}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	round := func(what string, want ...string) {
		t.Helper()
		l.enqueueAgentsOf("a")
		l.want(what, all, want...)
	}
	round("the first round", all...)
	round("nothing has happened", "works")
	if _, err := b.Ledger.RequestStop(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	round("it is to stop", all...)
	round("it is being stopped", all...)
}

// TestThoseThatWaitLearnThatTheirSandboxIsReady: it was connected in an earlier round, after which
// a hook or a service took its time.
func TestThoseThatWaitLearnThatTheirSandboxIsReady(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, linked{})
	l.sandboxes["late"] = &sandboxWork{id: "late"}
	sb, err := b.Ledger.Create(t.Context(), "late", new(agboxv1.CreateSpec))
	if err == nil {
		_, err = b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "waits", SandboxID: "late", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	round := func(what string, want ...string) {
		t.Helper()
		l.enqueueAgentsOf("late")
		l.want(what, []string{"waits"}, want...)
	}
	round("it is being made", "waits")
	if _, err := b.Ledger.Emit(t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_READY}); err != nil {
		t.Fatal(err)
	}
	round("it is READY", "waits")
	round("nothing has happened")
}

// TestTheAncestorsOfAnAgentThatHasEndedGetRounds: one may wait for it in another sandbox.
func TestTheAncestorsOfAnAgentThatHasEndedGetRounds(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, linked{})
	all, parent := []string{"top", "middle", "parent", "ends", "other"}, ""
	for _, id := range all {
		if id == "other" {
			parent = "top"
		}
		n := ledger.NewAgent{ID: id, Parent: parent, SandboxID: "a", Spec: &agboxv1.AgentSpec{Command: []string{"true"}}}
		if _, err := b.Ledger.SpawnAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		parent = id
	}
	l.enqueueKin("ends")
	l.want("it has ended", all, "middle", "parent", "top")
}

// TestTheKinOfAnAgentGetsRoundsOncePerEnd: an agent whose sandbox is kept for a while has further
// rounds after its end.
func TestTheKinOfAnAgentGetsRoundsOncePerEnd(t *testing.T) {
	b := guesttest.New(t)
	l := countRounds(t, b, linked{})
	l.agents, l.now, l.agentsAtWork = new(tidy), time.Now, make(map[string]*agentWork)
	ends := ledger.NewAgent{ID: "ends", Parent: "parent", SandboxID: "own", Own: &agboxv1.CreateSpec{Image: "img"}}
	for _, n := range []ledger.NewAgent{{ID: "parent", SandboxID: "a"}, ends} {
		n.Spec = &agboxv1.AgentSpec{Command: []string{"true"}}
		if _, err := b.Ledger.SpawnAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := b.Ledger.Agent("ends")
	if _, err := b.Ledger.EmitAgent(t.Context(), a.Record, agents.Reaped("test")); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{{"parent"}, nil, nil} {
		if due := l.agentRound(t.Context(), "ends"); due.IsZero() {
			t.Error("its sandbox is not kept")
		}
		l.want(fmt.Sprint("round ", i+1, " after its end"), []string{"parent"}, want...)
	}
}
