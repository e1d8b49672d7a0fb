package agent

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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
	used := func(n uint64) *agboxv1.AgentUsage { return &agboxv1.AgentUsage{InputTokens: n, CostMicroUsd: n} }
	for _, row := range []struct {
		name    string
		parent  Budget
		used    []*agboxv1.AgentUsage
		wanted  *agboxv1.AgentBudget
		tokens  uint64
		usd     string
		problem string
	}{
		{"the default", of(1e9), nil, nil, 500_000, "5.000000", ""},
		{"what is left of it", of(1000), []*agboxv1.AgentUsage{used(300), nil, used(100)}, nil, 600, "0.000600", ""},
		{"as asked", of(1000), nil, tokens(999, "0.001"), 999, "0.001000", ""},
		{"too many tokens", of(1000), []*agboxv1.AgentUsage{used(1)}, tokens(1000, "0.000001"), 0, "", "999 input tokens"},
		{"too much money", of(1000), []*agboxv1.AgentUsage{used(1)}, tokens(1, "0.001"), 0, "", "0.000999 USD"},
		{"no bound", of(1000), nil, tokens(0, "0.001"), 0, "", "1000 input tokens"},
		{"nothing left", of(1000), []*agboxv1.AgentUsage{used(600), used(600)}, nil, 0, "", "0 input tokens"},
		{"a parent without bounds", of(0), []*agboxv1.AgentUsage{used(77)}, tokens(0, "0"), 0, "0.000000", ""},
	} {
		got, problem := ChildBudget(row.parent, row.used, row.wanted)
		if got.GetInputTokens() != row.tokens || got.GetCostUsd() != row.usd || !strings.HasPrefix(problem, row.problem) || (problem == "") != (row.problem == "") {
			t.Errorf("%s: %v, %q", row.name, got, problem)
		}
	}
}
