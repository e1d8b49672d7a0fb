package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
)

// anAgent makes up the record of an agent that has been changed often.
func anAgent(r *rand.Rand, id int) Agent {
	var a Agent
	a.ID, a.Position, a.LastSequence = fmt.Sprint("a-", id), uint64(id+1), r.Uint64N(1000)+1
	a.SandboxID = fmt.Sprint("s-", r.IntN(3))
	a.Name = []string{"", "one", "two"}[r.IntN(3)]
	a.Parent = agents.Init
	if id > 0 && r.IntN(4) > 0 {
		a.Parent = fmt.Sprint("a-", r.IntN(id)) // no agent is below itself
	}
	a.State = []agboxv1.AgentState{agents.Pending, agents.Executing, agents.Completed, agents.Failed}[r.IntN(4)]
	a.Incarnations = r.Uint32N(3) + 1
	a.Origin = []string{agents.Init, "a-0", "a-1"}[r.IntN(3)]
	a.EndedAt = time.Unix(r.Int64N(5), 0)
	a.Owned, a.Deleted = r.IntN(4) == 0, r.IntN(8) == 0
	if r.IntN(3) == 0 {
		a.Incarnation = &agents.Incarnation{N: 1, ExecID: a.ID + "-1", SandboxID: a.SandboxID}
	}
	for range r.IntN(3) {
		if h := (agents.Holder{ID: fmt.Sprint("h-", r.IntN(3))}); !a.HeldBy(h.ID) {
			a.Holders = append(a.Holders, h)
		}
		if root := fmt.Sprint("a-", r.IntN(5)); !slices.Contains(a.StackRoots, root) {
			a.StackRoots = append(a.StackRoots, root)
		}
	}
	a.Spec = &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{InputTokens: new(r.Uint64N(100))}}
	a.FormerChildren = &agboxv1.AgentFormerChildren{Used: &agboxv1.AgentUsage{InputTokens: []uint64{0, r.Uint64N(50), ^uint64(0)}[r.IntN(3)], CostMicroUsd: r.Uint64N(9)}}
	return a
}

// takenOf is what the children of an agent take of its budget, by a look at all agents.
func takenOf(all map[string]Agent, id string) (sum gate.Amount) {
	for _, c := range all {
		if c.Parent == id {
			sum = sum.Plus(agents.Taken(c.Record, agents.RulesOf(c.Spec).Budget, takenOf(all, c.ID)))
		}
	}
	return sum
}

// whoLives has the ids in the lists of living agents.
func whoLives(l *Ledger) map[string][]string {
	lists := map[string][]string{"stranded": slices.Sorted(slices.Values(l.Stranded()))}
	for _, a := range l.Living() {
		lists["living"] = append(lists["living"], a.ID)
	}
	for _, p := range l.AtWork() {
		lists["at work"] = append(lists["at work"], p.ID)
	}
	for _, p := range l.Idle() {
		lists["idle"] = append(lists["idle"], p.ID)
	}
	return lists
}

// whoLivesByLooking is whoLives by a look at all agents and at the kin of each.
func whoLivesByLooking(l *Ledger) map[string][]string {
	lists := map[string][]string{"stranded": nil}
	add := func(list, id string, yes bool) {
		if yes {
			lists[list] = append(lists[list], id)
		}
	}
	for _, a := range l.Agents(func(a Agent) bool { return !a.Over() }) {
		add("living", a.ID, true)
		add("at work", a.ID, a.Incarnation != nil)
		add("idle", a.ID, a.Incarnation == nil)
		add("stranded", a.ID, l.Kin(a).ParentOver)
	}
	slices.Sort(lists["stranded"])
	return lists
}

func TestIndexesAndSumsOfAgentsFollowAnyHistory(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		var l Ledger
		l.agents.init()
		for step := range 200 {
			l.agents.putLocked(anAgent(r, r.IntN(12)))
			var want Ledger
			want.agents.init()
			for _, a := range l.Agents(nil) {
				want.agents.putLocked(a)
			}
			got, made := l.agents.index, want.agents.index
			got.untidy, made.untidy = nil, nil // depends on what was said of files
			if !reflect.DeepEqual(got, made) {
				t.Fatalf("seed %d, step %d: the indexes are\n%v; a look at all agents gives\n%v", seed, step, got, made)
			}
			if got, want := l.agents.journals, want.agents.journals; !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: of journals is known\n%v; a look at all agents gives\n%v", seed, step, got, want)
			}
			if got, want := l.agents.ended, want.agents.ended; !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: the ends are\n%v; a look at all agents gives\n%v", seed, step, got, want)
			}
			if got, want := whoLives(&l), whoLivesByLooking(&l); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: the lists of the living are\n%v; a look at all agents gives\n%v", seed, step, got, want)
			}
			for id := range maps.Keys(l.agents.all) {
				if got, want := l.agents.taken(id), takenOf(l.agents.all, id); got != want {
					t.Fatalf("seed %d, step %d: the children of %s take %v; a look at all agents gives %v", seed, step, id, got, want)
				}
			}
		}
	}
}

func TestAnEndedAgentIsUntidyUntilSomebodySaysOtherwise(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	if n := len(l.Untidy()); n != 0 {
		t.Errorf("%d agents are untidy before one has ended", n)
	}
	emitAgent(t, l, a.Record, agents.Reaped("test"))
	if n := len(l.Untidy()); n != 1 {
		t.Errorf("%d agents are untidy after one has ended, want it", n)
	}
	l.Tidied("a")
	if n := len(l.Untidy()); n != 0 {
		t.Errorf("%d agents are untidy after it was tidied", n)
	}
}

// TestASpawnLooksAtNoneThatHasEnded counts the records that a spawn reads as lists.
func TestASpawnLooksAtNoneThatHasEnded(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	n := agentOf("parent", "", "s")
	n.Spec.Stack = &agboxv1.AgentStack{Name: "crew", Agents: 100}
	n.Spec.Budget = &agboxv1.AgentBudget{InputTokens: new(uint64(1_000_000))}
	parent := spawn(t, l, n)
	child := func(id string) NewAgent {
		c := agentOf(id, "", "s")
		c.Parent = parent.ID
		return c
	}
	looked := func(id string) uint64 {
		before := l.agents.copied.Load()
		a := spawn(t, l, child(id))
		emitAgent(t, l, a.Record, agents.Reaped("test"))
		return l.agents.copied.Load() - before
	}
	few := looked("first")
	ended, _ := l.Agent("first")
	for i := range 10_000 {
		a := ended
		a.ID, a.Position = fmt.Sprint("ended-", i), a.Position+uint64(i)+1
		l.agents.mu.Lock()
		l.agents.putLocked(a)
		l.agents.mu.Unlock()
	}
	if many := looked("last"); many > few {
		t.Errorf("a spawn looks at %d agents after 10000 have ended, and at %d after none", many, few)
	}
	before := l.agents.copied.Load()
	l.AgentsIn("s")
	l.Undone()
	l.EndedBeyond(ended.EndedAt.Add(-1), ended.EndedAt, 10_001)
	l.LivingIn("s")
	l.Descendants("first")
	l.Living()
	l.LivingChildren("parent")
	l.Held(agents.AgentHolder("parent"))
	l.Followers("parent")
	if n := l.agents.copied.Load() - before; n > 10 {
		t.Errorf("a round looks at %d agents of which one lives", n)
	}
}

// TestWhatEndedChildrenHaveUsedIsNotAddedUpAgain puts other records of ended children below their
// parent: nobody must look at them any more.
func TestWhatEndedChildrenHaveUsedIsNotAddedUpAgain(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	n := agentOf("parent", "", "s")
	n.Spec.Budget = &agboxv1.AgentBudget{InputTokens: new(uint64(1000))}
	parent := spawn(t, l, n)
	n = agentOf("child", "", "s")
	n.Parent = parent.ID
	child := spawn(t, l, n)
	child.FormerChildren = &agboxv1.AgentFormerChildren{Used: &agboxv1.AgentUsage{InputTokens: 70}}
	child.State = agents.Completed
	l.agents.mu.Lock()
	l.agents.putLocked(child)
	child.FormerChildren = &agboxv1.AgentFormerChildren{Used: &agboxv1.AgentUsage{InputTokens: 700}}
	l.agents.all[child.ID] = child
	l.agents.mu.Unlock()
	if got := l.agents.taken(parent.ID); got.InputTokens != 70 {
		t.Errorf("the ended child takes %d tokens, want the 70 that were added up at its end", got.InputTokens)
	}
}

// BenchmarkSpawn is a spawn and the end of the agent, beside agents of the parent that have
// ended.
func BenchmarkSpawn(b *testing.B) {
	for _, ended := range []int{10, 10_000} {
		b.Run(fmt.Sprint(ended), func(b *testing.B) {
			l := fresh(b)
			ready(b, l, "s")
			parent := spawn(b, l, agentOf("parent", "", "s"))
			for i := range ended {
				a := parent
				a.ID, a.Parent, a.Position, a.State = fmt.Sprint("ended-", i), "parent", a.Position+uint64(i)+1, agents.Completed
				l.agents.putLocked(a)
			}
			i := 0
			for b.Loop() {
				i++
				n := agentOf(fmt.Sprint("new-", i), "", "s")
				n.Parent = "parent"
				a := spawn(b, l, n)
				emitAgent(b, l, a.Record, agents.Reaped("test"))
			}
		})
	}
}
