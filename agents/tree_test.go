package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	byHold    = agboxv1.KillCascade_KILL_CASCADE_UNSPECIFIED
	wholeTree = agboxv1.KillCascade_KILL_CASCADE_TREE
	noCascade = agboxv1.KillCascade_KILL_CASCADE_NONE
)

// killWith requests the end of an agent, which decides about its children too.
func (h *history) killWith(cascade agboxv1.KillCascade) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED,
		Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{
			Mode: agboxv1.KillMode_KILL_MODE_NOW, Cascade: cascade,
		}},
	})
}

// over ends the agent in a state.
func (h *history) over(state agboxv1.AgentState) *history {
	h.t.Helper()
	return h.endWith(&agboxv1.IncarnationEnd{Kind: exited}).add(ended(state, &agboxv1.AgentDone{}))
}

// heldByParent has the parent as its only holder.
func heldByParent(h *history) {
	h.r.Held, h.r.Holders = true, []Holder{{ID: AgentHolder("parent")}}
}

// heldByTwo has the parent and a client as holders.
func heldByTwo(h *history) {
	h.r.Held, h.r.Holders = true, []Holder{{ID: AgentHolder("parent")}, {ID: ClientHolder("c")}}
}

// heldByAnother has a client as its only holder.
func heldByAnother(h *history) { h.r.Held, h.r.Holders = true, []Holder{{ID: ClientHolder("c")}} }

func TestWhatBecomesOfTheChildrenOfAnAgent(t *testing.T) {
	for _, row := range []struct {
		name   string
		parent Record
		child  func(*history)
		want   string
	}{
		{"parent lives", working(t).r, nil, "rest"},
		{"parent completed", working(t).over(Completed).r, nil, "AGENT_REPARENTED"},
		{"parent crashed", working(t).over(DeadLetter).r, nil, "AGENT_REPARENTED"},
		{"parent removed", Record{}, nil, "AGENT_REPARENTED"},
		{"parent is killed", working(t).killWith(byHold).r, nil, "rest"},
		{"parent is killed and holds it alone", working(t).killWith(byHold).r, heldByParent, "rest"},
		{"parent was killed and held it alone", working(t).killWith(byHold).over(Aborted).r, heldByParent, "AGENT_KILL_REQUESTED"},
		{"parent was killed and held it alone, without its tree", working(t).killWith(noCascade).over(Aborted).r, heldByParent, "AGENT_REPARENTED"},
		{"parent crashed and held it alone", working(t).over(DeadLetter).r, heldByParent, "AGENT_REPARENTED"},
		{"parent crashed and held it with another", working(t).over(DeadLetter).r, heldByTwo, "AGENT_REPARENTED"},
		{"parent was killed and held it with another", working(t).killWith(byHold).over(Aborted).r, heldByTwo, "AGENT_CLOSED"},
		{"parent was killed and held it with another, without its tree", working(t).killWith(noCascade).over(Aborted).r, heldByTwo, "AGENT_REPARENTED"},
		{"parent was killed and another held it", working(t).killWith(byHold).over(Aborted).r, heldByAnother, "AGENT_REPARENTED"},
		{"parent was killed", working(t).killWith(byHold).over(Aborted).r, nil, "AGENT_REPARENTED"},
		{"parent is killed with its tree", working(t).killWith(wholeTree).r, nil, "AGENT_KILL_REQUESTED"},
		{"parent was killed with its tree", working(t).killWith(wholeTree).over(Aborted).r, nil, "AGENT_KILL_REQUESTED"},
		{"parent was killed with its tree, child is killed", working(t).killWith(wholeTree).over(Aborted).r, func(h *history) { h.killWith(byHold) }, "AGENT_REPARENTED"},
		{"parent is killed with its tree, child is killed", working(t).killWith(wholeTree).r, func(h *history) { h.killWith(byHold) }, "kill"},
		{"parent was killed without its tree", working(t).killWith(noCascade).over(Aborted).r, nil, "AGENT_REPARENTED"},
		{"parent was killed with its tree, but had completed", working(t).killWith(wholeTree).over(Completed).r, nil, "AGENT_REPARENTED"},
		{"parent completed, child has ended", working(t).over(Completed).r, func(h *history) { h.over(Completed) }, "rest"},
		{"parent completed, child has crashed", working(t).over(Completed).r, func(h *history) { h.crash("no") }, "AGENT_REPARENTED"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := working(t)
			h.r.Parent, h.r.Owned = "parent", false
			if row.child != nil {
				row.child(h)
			}
			step := Next(h.r, Seen{Sandbox: SandboxReady, Exec: ExecRunning, Kin: KinOf(row.parent, "grandparent")}, rules(), t0)
			if got := say(step); got != row.want {
				t.Fatalf("step %q; want %q", got, row.want)
			}
			if step.Do != Emit {
				return
			}
			h.add(step.Event)
			switch {
			case step.Event.GetReparent() != nil && h.r.Parent != "grandparent":
				t.Errorf("its parent is %s", h.r.Parent)
			case step.Event.GetHold() != nil && (h.r.HeldBy(AgentHolder("parent")) || len(h.r.Holders) != 1):
				t.Errorf("it is held by %v", h.r.Holders)
			case step.Event.GetKill() != nil && h.r.Kill.GetCascade() != row.parent.Kill.GetCascade():
				t.Errorf("for its own children holds something else: %v", h.r.Kill)
			case step.Event.GetKill() != nil && h.r.Kill.GetMode() != agboxv1.KillMode_KILL_MODE_NOW:
				t.Errorf("it is ended otherwise than its parent: %v", h.r.Kill)
			}
		})
	}
}

// TestTheRootNeverEndsAndHasNoParent: nothing leads out of its state, whatever happens.
func TestTheRootNeverEndsAndHasNoParent(t *testing.T) {
	root := Fold(Record{}, &agboxv1.AgentEvent{
		AgentId: Init, Type: agboxv1.AgentEventType_AGENT_SPAWNED, Sequence: 1,
		Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Name: Init}},
	})
	for n := range agboxv1.AgentEventType_name {
		for state := range agboxv1.AgentState_name {
			ev := exampleEvent(agboxv1.AgentEventType(n), root)
			ev.State = agboxv1.AgentState(state)
			if !Legal(root, ev) {
				continue
			}
			if after := Fold(root, ev); after.Over() || after.Deleted || after.Parent != "" || after.Incarnation != nil {
				t.Errorf("%v is possible and leads to %+v", ev, after)
			}
		}
	}
	if step := Next(root, Seen{Kin: KinOf(Record{}, Init)}, rules(), t0); step.Do != Rest {
		t.Errorf("the root does something: %v", step.Do)
	}
}

func TestAnAgentFollowsOthers(t *testing.T) {
	works, completed, failed := working(t).r, working(t).over(Completed).r, working(t).over(Failed).r
	failed.Name = "planner"
	drain := func(h *history) {
		h.pauseFor(forRequest).add(&agboxv1.AgentEvent{
			Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{}},
		})
	}
	for _, row := range []struct {
		name    string
		before  func(*history)
		sandbox Sandbox
		others  []Record
		want    string
	}{
		{"no other", nil, SandboxReady, nil, "AGENT_BEGUN"},
		{"one works", nil, SandboxReady, []Record{completed, works}, "rest"},
		{"one works, its sandbox is stopped", nil, SandboxIdle, []Record{works}, "rest"},
		{"all completed", nil, SandboxReady, []Record{completed, completed}, "AGENT_BEGUN"},
		{"one failed, another works", nil, SandboxReady, []Record{works, failed}, "end FAILED"},
		{"one was removed", nil, SandboxReady, []Record{{}}, "end FAILED"},
		{"paused and resumed before it began, one works", drain, SandboxReady, []Record{works}, "rest"},
		{"paused and resumed before it began, one failed", drain, SandboxReady, []Record{failed}, "end FAILED"},
		{"killed, one works", func(h *history) { h.killWith(byHold) }, SandboxReady, []Record{works}, "end ABORTED"},
		{"has begun", func(h *history) { h.begun().crash("no") }, SandboxReady, []Record{failed}, "rest until 5s"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := spawned(t)
			if row.before != nil {
				row.before(h)
			}
			seen := Seen{Sandbox: row.sandbox}
			for _, other := range row.others {
				seen.Kin.Await("other", other)
			}
			if got := say(Next(h.r, seen, rules(), t0)); got != row.want {
				t.Errorf("step %q; want %q", got, row.want)
			}
		})
	}
	var kin Kin
	kin.Await("x", failed)
	done := Next(spawned(t).r, Seen{Sandbox: SandboxReady, Kin: kin}, rules(), t0).Event.GetDone()
	if done.GetErrorCode() != "DEPENDENCY_FAILED" || done.GetMessage() != "It was to follow agent planner, which is FAILED." {
		t.Errorf("it fails with %v", done)
	}
}

func TestAKillIsOnlyReplacedByAStrongerOne(t *testing.T) {
	term, now := agboxv1.KillMode_KILL_MODE_TERMINATE, agboxv1.KillMode_KILL_MODE_NOW
	graceful := agboxv1.KillMode_KILL_MODE_GRACEFUL
	kill := func(mode agboxv1.KillMode, cascade agboxv1.KillCascade) *agboxv1.AgentKill {
		return &agboxv1.AgentKill{Mode: mode, Cascade: cascade}
	}
	for _, row := range []struct{ before, wish, want *agboxv1.AgentKill }{
		{nil, kill(term, byHold), kill(term, byHold)},
		{kill(term, byHold), kill(term, byHold), nil},
		{kill(term, byHold), kill(now, byHold), kill(now, byHold)},
		{kill(now, byHold), kill(term, byHold), nil},
		{kill(now, byHold), kill(term, wholeTree), kill(now, wholeTree)},
		{kill(graceful, byHold), kill(term, byHold), kill(term, byHold)},
		{kill(term, byHold), kill(graceful, byHold), nil},
		{kill(term, wholeTree), kill(now, byHold), kill(now, wholeTree)},
		{kill(term, wholeTree), kill(term, noCascade), kill(term, noCascade)},
	} {
		if got := Stronger(row.before, row.wish); !proto.Equal(got, row.want) {
			t.Errorf("%v after %v: %v; want %v", row.wish, row.before, got, row.want)
		}
	}
}

func TestAProgramThatIsAskedToEndIsLeftAloneOnceItKnows(t *testing.T) {
	for _, row := range []struct {
		name string
		now  time.Duration
		seen Seen
		want string
	}{
		{"asked", 0, Seen{}, "rest until 30s"},
		{"asked, cannot be reached", time.Second, Seen{Unknown: true}, "rest until 30s"},
		{"asked, has reported", 0, Seen{Unread: true}, "consume"},
		{"does not acknowledge", 30 * time.Second, Seen{}, "kill"},
		{"does not acknowledge, cannot be reached", 30 * time.Second, Seen{Unknown: true}, "kill"},
		{"does not acknowledge, dies", 31 * time.Second, Seen{Ending: true}, "rest"},
		{"acknowledged", time.Hour, Seen{Acknowledged: true}, "rest"},
		{"acknowledged, has exited", time.Hour, Seen{Acknowledged: true, Exec: ExecEnded}, "collect"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := working(t).add(&agboxv1.AgentEvent{
				Type: agboxv1.AgentEventType_AGENT_KILL_REQUESTED,
				Details: &agboxv1.AgentEvent_Kill{Kill: &agboxv1.AgentKill{
					Mode: agboxv1.KillMode_KILL_MODE_GRACEFUL,
				}},
			})
			row.seen.Sandbox = SandboxReady
			if row.seen.Exec == ExecUnknown {
				row.seen.Exec = ExecRunning
			}
			if got := say(Next(h.r, row.seen, rules(), t0.Add(row.now))); got != row.want {
				t.Errorf("step %q; want %q", got, row.want)
			}
		})
	}
}

func TestWhatAnAgentMaySpawn(t *testing.T) {
	if _, may := SpawnRulesOf(&agboxv1.AgentSpec{}); may {
		t.Error("without a block it may spawn")
	}
	r, may := SpawnRulesOf(&agboxv1.AgentSpec{MaySpawn: new(agboxv1.AgentMaySpawn)})
	if !may || r.Children != 16 || r.Depth != 1 || !r.Allows("") || r.Allows("worker") || r.OfChild() != nil {
		t.Errorf("the defaults are %+v, %v", r, may)
	}
	r, _ = SpawnRulesOf(&agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"a", "b"}, Children: 3, Depth: 2}})
	if r.Allows("") || !r.Allows("b") || r.OfChild().GetDepth() != 1 || r.OfChild().GetChildren() != 3 || len(r.OfChild().GetClasses()) != 2 {
		t.Errorf("a child of %+v may spawn %v", r, r.OfChild())
	}
}

func TestAChildGetsNoMoreThanIsLeft(t *testing.T) {
	tokens := func(n uint64, usd string) *agboxv1.AgentBudget {
		return &agboxv1.AgentBudget{InputTokens: &n, CostUsd: usd}
	}
	of := func(n uint64) Budget { return Budget{InputTokens: n, CostMicroUSD: n} }
	for _, row := range []struct {
		name    string
		parent  Budget
		left    uint64
		shares  int
		wanted  *agboxv1.AgentBudget
		tokens  uint64
		usd     string
		problem string
	}{
		{"the default", of(1e9), 1e9, 17, nil, 500_000, "5.000000", ""},
		{"a share of what is left", of(1000), 600, 3, nil, 200, "0.000200", ""},
		{"a small share", of(1000), 2, 3, nil, 1, "0.000001", ""},
		{"as asked", of(1000), 1000, 3, tokens(999, "0.001"), 999, "0.001000", ""},
		{"too many tokens", of(1000), 999, 3, tokens(1000, "0.000001"), 0, "", "999 input tokens"},
		{"too much money", of(1000), 999, 3, tokens(1, "0.001"), 0, "", "0.000999 USD"},
		{"no bound", of(1000), 1000, 3, tokens(0, "0.001"), 0, "", "1000 input tokens"},
		{"nothing left", of(1000), 0, 3, nil, 0, "", "0 input tokens"},
		{"a parent without bounds", of(0), 0, 3, tokens(0, "0"), 0, "0.000000", ""},
	} {
		got, problem := ChildBudget(row.parent, of(row.left), row.shares, row.wanted)
		if got.GetInputTokens() != row.tokens || got.GetCostUsd() != row.usd || !strings.HasPrefix(problem, row.problem) || (problem == "") != (row.problem == "") {
			t.Errorf("%s: %v, %q", row.name, got, problem)
		}
	}
}

func TestAChildTakesItsBudgetUntilItEndsAndThenWhatItHasUsed(t *testing.T) {
	of := func(n uint64) gate.Amount { return gate.Amount{InputTokens: n, CostMicroUSD: n} }
	spent := func(n uint64) *agboxv1.AgentUsage { return &agboxv1.AgentUsage{InputTokens: n, CostMicroUsd: n} }
	child := Record{State: Executing, Progress: &agboxv1.AgentProgress{Total: spent(10)}, FormerChildren: &agboxv1.AgentFormerChildren{Used: spent(5)}}
	if got := Taken(child, Budget(of(100)), of(20)); got != of(100) {
		t.Errorf("while it works it takes %v", got)
	}
	if got := Taken(child, Budget(of(0)), of(20)); got != of(35) {
		t.Errorf("without a bound it takes %v", got)
	}
	child.State = Completed
	if got := Taken(child, Budget(of(100)), of(20)); got != of(35) {
		t.Errorf("after its end it takes %v", got)
	}
	child.State = Executing
	if got := Left(child, Budget(of(100)), of(20)); got != Budget(of(65)) {
		t.Errorf("a parent has %v left", got)
	}
	if got := Left(child, Budget{InputTokens: 30}, of(20)); got != (Budget{}) {
		t.Errorf("a parent that has given more than it has, has %v left", got)
	}
}

func TestTheRootOfAStackHasNoMoreThanTheStackMayCost(t *testing.T) {
	for _, row := range []struct{ stack, usd, want string }{
		{"", "", ""}, {"0.5", "", "0.500000"}, {"0.5", "0", "0.500000"}, {"0.5", "0.4", "0.4"}, {"7", "", ""}, {"7", "8", "7.000000"},
	} {
		spec := &agboxv1.AgentSpec{Stack: &agboxv1.AgentStack{Name: "team", CostUsd: row.stack}}
		if row.usd != "" {
			spec.Budget = &agboxv1.AgentBudget{CostUsd: row.usd}
		}
		if got := WithinStack(spec).GetBudget().GetCostUsd(); got != row.want {
			t.Errorf("a stack of %q and a budget of %q: %q", row.stack, row.usd, got)
		}
	}
}
