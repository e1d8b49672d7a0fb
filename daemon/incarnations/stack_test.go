package incarnations

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

func TestAStackHasItsOwnBounds(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{
		Budget: &agboxv1.AgentBudget{CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Depth: 3},
		Stack: &agboxv1.AgentStack{Name: "team", Agents: 4, CostUsd: "0.5"},
	})
	inner, code := r.make("spawn", `{"command":["x"],"name":"inner","stack":{"name":"sub","agents":2}}`)
	r.want("an inner stack", code, "")
	a := r.child(inner["agent_id"].(string))
	if a.Stack != "sub" || a.StackRoot() != a.ID || len(a.StackRoots) != 3 || a.Spec.GetBudget().GetCostUsd() != "0.029411" {
		t.Errorf("the inner root is in %q %v with %v", a.Stack, a.StackRoots, a.Spec.GetBudget())
	}
	_, code = r.make("spawn", `{"command":["x"],"budget":{"cost_usd":"0.6"}}`)
	r.want("more than the stack may cost", code, "BUDGET_EXHAUSTED")
	below := func(id, parent string) error {
		_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Name: id, Parent: parent, SandboxID: "a", Spec: new(agboxv1.AgentSpec)})
		return err
	}
	if err := below("deep", a.ID); err != nil {
		t.Fatal(err)
	}
	if err := below("deep2", a.ID); err == nil || !strings.Contains(err.Error(), "Stack sub has 2 agents") {
		t.Errorf("one too many for the inner stack: %v", err)
	}
	if d := r.child("deep"); d.Stack != "sub" || !r.Ledger.InStack(d, "team") || !r.Ledger.InStack(d, "sub") || r.Ledger.InStack(r.child("x"), "sub") {
		t.Errorf("a descendant is in %q %v", d.Stack, d.StackRoots)
	}
	_, code = r.make("kill", `{"agent":"deep"}`)
	r.want("in another stack", code, "AGENT_NOT_FOUND")
	_, code = r.make("kill", `{"agent":"inner"}`)
	r.want("the root of the inner stack", code, "")
	_, code = r.make("spawn", `{"command":["x"],"name":"mate"}`)
	r.want("the fourth", code, "")
	_, code = r.make("spawn", `{"command":["x"]}`)
	r.want("one too many for the outer stack", code, "AGENT_LIMIT")
}

func TestMessagesCrossTheBorderOfAStackOnlyBetweenRootAndParent(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{})
	for _, n := range []ledger.NewAgent{
		{ID: "mate"}, {ID: "root", Parent: "x", Spec: &agboxv1.AgentSpec{Stack: &agboxv1.AgentStack{Name: "team", InboxBytes: 1000}}},
		{ID: "one", Parent: "root"}, {ID: "two", Parent: "root"},
	} {
		if n.SandboxID = "a"; n.Spec == nil {
			n.Spec = new(agboxv1.AgentSpec)
		}
		if _, err := r.Ledger.SpawnAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		from, to string
		reaches  bool
	}{
		{"x", "mate", true}, {"x", "init", true}, {"x", "root", true}, {"root", "x", true}, {"root", "one", true}, {"one", "two", true},
		{"x", "one", false}, {"one", "x", false}, {"one", "mate", false}, {"mate", "root", false}, {"root", "mate", false}, {"one", "init", false}, {"root", "init", false},
	} {
		from, to := r.child(row.from), row.to
		parent := from.Parent
		recipient, _ := r.Ledger.Agent(to) // init is made with its first event
		recipient.ID = to
		if got := from.Reaches(recipient.Record, parent); got != row.reaches {
			t.Errorf("%s to %s: %v", row.from, to, got)
		}
	}
	text := strings.Repeat("x", 600)
	if _, err := r.Ledger.SendMessage(t.Context(), "client", "one", "", text); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ledger.SendMessage(t.Context(), "client", "two", "", text); err == nil || !strings.Contains(err.Error(), "stack team may have 1000 bytes") {
		t.Errorf("more than the stack may have unread: %v", err)
	}
	if _, err := r.Ledger.SendMessage(t.Context(), "client", "mate", "", text); err != nil {
		t.Errorf("outside of it: %v", err)
	}
}

func TestHoldsCrossTheBorderOfAStackOnlyFromItsParent(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{})
	held := func(stack string) *agboxv1.AgentSpec {
		spec := &agboxv1.AgentSpec{Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}
		if stack != "" {
			spec.Stack = &agboxv1.AgentStack{Name: stack}
		}
		return spec
	}
	for _, n := range []ledger.NewAgent{
		{ID: "mid", Parent: "x", Spec: held("")}, {ID: "low", Parent: "mid", Spec: held("")},
		{ID: "far", Parent: "mid", Spec: held("team")}, {ID: "near", Parent: "x", Spec: held("other")}, {ID: "deep", Parent: "near", Spec: held("")},
	} {
		n.SandboxID = "a"
		if _, err := r.Ledger.SpawnAgent(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct{ target, code string }{
		{"mid", ""}, {"low", ""}, {"near", ""}, {"far", "STACK_BORDER"}, {"deep", "AGENT_NOT_FOUND"},
	} {
		_, code := r.make("open", `{"stream":"agent:`+row.target+`"}`)
		r.want("open "+row.target, code, row.code)
		if held := r.child(row.target).HeldBy("agent:x"); held != (row.code == "") {
			t.Errorf("x holds %s: %v", row.target, held)
		}
	}
}

// TestAStackAndItsMembersDoNotUseTheSameBudget: the root of a stack has what the stack may cost,
// and its children have parts of that, which the root cannot use too. A child that is the root
// of a further stack has an equal share like any other, and no more than its stack may cost.
func TestAStackAndItsMembersDoNotUseTheSameBudget(t *testing.T) {
	tokens := uint64(9000)
	r := asking(t, &agboxv1.AgentSpec{
		Budget: &agboxv1.AgentBudget{InputTokens: &tokens}, MaySpawn: &agboxv1.AgentMaySpawn{Children: 8, Depth: 3},
		Stack: &agboxv1.AgentStack{Name: "team", CostUsd: "0.9"},
	})
	budget := func(request, want string, input uint64) string {
		t.Helper()
		made, code := r.make("spawn", request)
		r.want(request, code, "")
		id, _ := made["agent_id"].(string)
		if b := r.child(id).Spec.GetBudget(); b.GetCostUsd() != want || b.GetInputTokens() != input {
			t.Errorf("%s has %v; want %s USD and %d tokens", request, b, want, input)
		}
		return id
	}
	share := budget(`{"command":["x"],"stack":{"name":"a","cost_usd":"5"}}`, "0.100000", 1000)
	budget(`{"command":["x"],"stack":{"name":"b","cost_usd":"0.01"}}`, "0.010000", 1000)
	most := budget(`{"command":["x"],"stack":{"name":"c","cost_usd":"0.5"},"budget":{"cost_usd":"2","input_tokens":100}}`, "0.500000", 100)
	_, code := r.make("spawn", `{"command":["x"],"budget":{"cost_usd":"0.3"}}`)
	r.want("more than is left of the stack", code, "BUDGET_EXHAUSTED")
	if got := r.Ledger.ChildrenBudget(r.agent()); got.CostMicroUSD != 610_000 || got.InputTokens != 2100 {
		t.Errorf("the children have %v", got)
	}
	if got := r.to.allotted; len(got) == 0 || got[len(got)-1] != 2100 {
		t.Errorf("the root was told of %d tokens", got)
	}
	// A member of an inner stack takes of its root only, which has it all from the outer one.
	spec := &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{CostUsd: "0.4"}}
	if _, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "deep", Parent: most, SandboxID: "a", Spec: spec, MaxChildren: 1}); err != nil {
		t.Fatal(err)
	}
	if inner, outer := r.Ledger.ChildrenBudget(r.child(most)), r.Ledger.ChildrenBudget(r.agent()); inner.CostMicroUSD != 400_000 || outer.CostMicroUSD != 610_000 {
		t.Errorf("below the inner root are %v, below the outer one %v", inner, outer)
	}
	r.end(share)
	if got := r.Ledger.ChildrenBudget(r.agent()); got.CostMicroUSD != 510_000 {
		t.Errorf("after the end of one the children have %v", got)
	}
}
