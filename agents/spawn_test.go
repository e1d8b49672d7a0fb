package agents

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/gate"
)

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
