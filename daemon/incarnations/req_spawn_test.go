package incarnations

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// requests is a bench whose agent asks.
type requests struct {
	*bench
	to     *answers
	number uint64
	// refused is what the check of a child's own sandbox says, and sandboxes those that were
	// scheduled.
	refused   error
	sandboxes []string
}

func asking(t testing.TB, spec *agboxv1.AgentSpec) *requests {
	b, to := newBench(t, spec), new(answers)
	b.execs = to
	b.AdmitChildren(func(_ *agboxv1.CreateSpec, a *agboxv1.AgentSpec) (*agboxv1.AgentSpec, error) { return a, nil })
	r := &requests{bench: b, to: to}
	b.SandboxesOfChildren(ChildSandboxes{
		Admit:   func(*agboxv1.CreateSpec) error { return r.refused },
		Enqueue: func(id string) { r.sandboxes = append(r.sandboxes, id) },
	})
	return r
}

// make asks for something. The result is nil if there is none yet, and code is that of a
// refusal.
func (r *requests) make(op, body string) (result map[string]any, code string) {
	r.t.Helper()
	r.number++
	r.ask(r.link, &guestv1.AgentRequest{Number: r.number, Op: op, Json: []byte(body)})
	return r.again()
}

// again offers the request again.
func (r *requests) again() (result map[string]any, code string) {
	r.t.Helper()
	got := r.decided(r.to)
	if len(got) == 0 {
		return nil, ""
	}
	if got[0].GetCode() != "" {
		return nil, got[0].GetCode()
	}
	if err := json.Unmarshal(got[0].GetJson(), &result); err != nil {
		r.t.Fatal(err)
	}
	return result, ""
}

func (r *requests) want(what, code, wanted string) {
	r.t.Helper()
	if code != wanted {
		r.t.Errorf("%s: %q; want %q", what, code, wanted)
	}
}

func (r *requests) child(id string) ledger.Agent {
	r.t.Helper()
	a, ok := r.Ledger.Agent(id)
	if !ok {
		r.t.Fatalf("there is no agent %q", id)
	}
	return a
}

// end ends an agent that has not begun.
func (r *requests) end(id string) {
	r.t.Helper()
	r.emit(r.child(id), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: agboxv1.AgentState_AGENT_STATE_ABORTED,
		Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT, Message: "enough"}},
	})
}

// TestAChildInheritsNoVariablesOfAgbox: its parent, or the child itself in a request that comes
// again, may be from before such names were refused.
func TestAChildInheritsNoVariablesOfAgbox(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{
		Command: []string{"p"}, Envs: map[string]string{"A": "1", "AGBOX_MODE": "x"}, MaySpawn: new(agboxv1.AgentMaySpawn),
		Retry: &agboxv1.AgentRetry{Reduced: &agboxv1.AgentReduced{Envs: map[string]string{"AGBOX_MODE": "x", "AGBOX_BROWSER": "1"}}},
	})
	got, code := r.make("spawn", `{"key":"k","command":["sh"]}`)
	r.want("a child", code, "")
	s := r.child(got["agent_id"].(string)).Spec
	if envs := fmt.Sprint(s.GetEnvs(), s.GetRetry().GetReduced().GetEnvs()); envs != "map[A:1] map[AGBOX_BROWSER:1]" {
		t.Errorf("the child has %s", envs)
	}
	old, code := r.make("spawn", `{"key":"old","command":["sh"],"envs":{"AGBOX_MODE":"x"}}`) // here nothing refuses it
	r.want("a child from before", code, "")
	again, code := r.make("spawn", `{"key":"old","command":["sh"]}`)
	r.want("its request again", code, "")
	if again["agent_id"] != old["agent_id"] {
		t.Errorf("its request again gives %v; want %v", again, old)
	}
}

func TestAChildHasWhatItsParentMayGive(t *testing.T) {
	tokens := uint64(1000)
	r := asking(t, &agboxv1.AgentSpec{
		Model: "m", Envs: map[string]string{"A": "1", "B": "1"}, User: "1000", Budget: &agboxv1.AgentBudget{InputTokens: &tokens, CostUsd: "1"},
		MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"worker"}, Children: 2, Depth: 2},
		Probes:   &agboxv1.AgentProbes{Liveness: new(agboxv1.AgentProbe)}, Command: []string{"p"}, Title: "parent", Name: "p",
	})
	const one = `{"class":"worker","command":["true","x"],"key":"k","name":"one","envs":{"B":"2"},"work":"do it","ready":"report","budget":{"input_tokens":600,"cost_usd":"0.5"}}`
	got, code := r.make("spawn", one)
	r.want("a child", code, "")
	c := r.child(got["agent_id"].(string))
	s := c.Spec
	if c.Parent != "x" || c.SandboxID != "a" || c.Owned || c.Depth != 2 || c.Name != "one" || c.Class != "worker" {
		t.Errorf("the child is %+v", c.Record)
	}
	if s.GetModel() != "m" || s.GetEnvs()["A"] != "1" || s.GetEnvs()["B"] != "2" || s.GetUser() != "1000" || s.GetProbes() != nil || s.GetTitle() != "" ||
		s.GetMaySpawn().GetDepth() != 1 || s.GetReady() != agboxv1.AgentReady_AGENT_READY_REPORT || s.GetBudget().GetInputTokens() != 600 {
		t.Errorf("its spec is %v", s)
	}
	if work, err := r.Ledger.AgentWork(t.Context(), c.ID); string(work) != "do it" || err != nil {
		t.Errorf("its work is %q, %v", work, err)
	}
	again, code := r.make("spawn", one)
	r.want("the same key", code, "")
	if again["agent_id"] != c.ID {
		t.Errorf("the same key makes %v", again)
	}
	_, code = r.make("spawn", `{"class":"worker","command":["false"],"key":"k","name":"one"}`)
	r.want("the key of another child", code, "REQUEST_KEY_REUSED")
	_, code = r.make("spawn", `{"class":"worker","command":["x"],"budget":{"input_tokens":1001}}`)
	r.want("more than is left", code, "BUDGET_EXHAUSTED")
	second, code := r.make("spawn", `{"class":"worker","command":["x"]}`)
	r.want("a share of what is left", code, "")
	if b := r.child(second["agent_id"].(string)).Spec.GetBudget(); b.GetInputTokens() != 200 || b.GetCostUsd() != "0.250000" {
		t.Errorf("the share of the budget is %v", b)
	}
	_, code = r.make("spawn", `{"class":"worker","command":["x"]}`)
	r.want("one too many", code, "AGENT_LIMIT")
	r.end(second["agent_id"].(string))
	_, code = r.make("spawn", `{"class":"worker","command":["x"]}`)
	r.want("after one has ended", code, "")
}

// TestTheBudgetsOfChildrenDoNotOverlap: what a child has not used is its parent's again after
// its end, and what it has used is not, also after it was removed.
func TestTheBudgetsOfChildrenDoNotOverlap(t *testing.T) {
	tokens := uint64(1000)
	r := asking(t, &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{InputTokens: &tokens, CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Children: 8, Depth: 2}})
	spawn := func(count int, code string) string {
		t.Helper()
		made, got := r.make("spawn", fmt.Sprintf(`{"command":["x"],"budget":{"input_tokens":%d,"cost_usd":"0"}}`, count))
		r.want(fmt.Sprint("a child with ", count), got, code)
		id, _ := made["agent_id"].(string)
		return id
	}
	first := spawn(700, "")
	spawn(400, "BUDGET_EXHAUSTED")
	second := spawn(300, "")
	spawn(1, "BUDGET_EXHAUSTED")
	r.uses(first, 50)
	r.end(first)
	if got := r.Ledger.ChildrenBudget(r.agent()); got.InputTokens != 350 {
		t.Errorf("the children have %d tokens", got.InputTokens)
	}
	spawn(651, "BUDGET_EXHAUSTED")
	third := spawn(650, "")
	r.end(third)
	for _, id := range []string{first, third} {
		if _, err := r.Ledger.DeleteAgent(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	spawn(651, "BUDGET_EXHAUSTED")
	if got := r.Ledger.ChildrenBudget(r.agent()); got.InputTokens != 350 {
		t.Errorf("with removed ones the children have %d tokens", got.InputTokens)
	}
	r.uses(second, 7)
	r.end(second)
	spawn(944, "BUDGET_EXHAUSTED")
	spawn(943, "")
}

// uses lets an agent have used tokens.
func (r *requests) uses(id string, tokens uint64) {
	r.t.Helper()
	r.emit(r.child(id), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_BEGUN, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Begun{Begun: &agboxv1.AgentBegun{ExecId: "exec-" + id, SandboxId: "a", Attempt: 1}},
	})
	r.emit(r.child(id), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_PROGRESS, Incarnation: 1,
		Details: &agboxv1.AgentEvent_Progress{Progress: &agboxv1.AgentProgress{Total: &agboxv1.AgentUsage{InputTokens: tokens}}},
	})
	r.emit(r.child(id), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{ExitCode: 1}},
	})
}

func TestWhatAParentMayNotSpawn(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"worker"}}})
	for _, row := range []struct{ body, code string }{
		{`{"class":"admin","command":["x"]}`, "SPAWN_NOT_ALLOWED"},
		{`{"command":["x"]}`, "SPAWN_NOT_ALLOWED"},
		{`{"class":"worker","command":["x"],"mounts":[{"source":"/"}]}`, "SPAWN_NOT_ALLOWED"},
		{`{"class":"worker","command":["x"],"image":"x"}`, "SPAWN_NOT_ALLOWED"},
		{`{"class":"worker","command":["x"],"user":"0"}`, "SPAWN_NOT_ALLOWED"},
		{`{"class":"worker","command":["x"],"Sandbox_id":"b"}`, "SPAWN_NOT_ALLOWED"},
		{`{"class":"worker","command":["x"],"budget":{"usd":"1"}}`, "INVALID_REQUEST"},
		{`{"class":"worker","command":[]}`, "INVALID_REQUEST"},
		{`{"class":"worker","command":"x"}`, "INVALID_REQUEST"},
		{`{"class":"worker","command":["x"],"ready":"probe"}`, "INVALID_REQUEST"},
		{`{"class":"worker","command":["x"],"key":"` + strings.Repeat("k", 300) + `"}`, "INVALID_REQUEST"},
		{`[]`, "INVALID_REQUEST"},
		{`{"class":"worker","command":["x"],"after":["x"]}`, "AGENT_NOT_FOUND"},
		{`{"class":"worker","command":["x"],"name":"init"}`, "AGENT_ID_ALREADY_EXISTS"},
	} {
		_, code := r.make("spawn", row.body)
		r.want(row.body, code, row.code)
	}
	none := asking(t, &agboxv1.AgentSpec{})
	_, code := none.make("spawn", `{"command":["x"]}`)
	none.want("without the block", code, "SPAWN_NOT_ALLOWED")
	if len(r.Ledger.Children("x"))+len(none.Ledger.Children("x")) != 0 {
		t.Error("something was spawned")
	}
}

func TestNoAgentIsTooDeep(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Depth: 8}})
	parent := "x"
	for depth := uint32(2); ; depth++ {
		a, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: parent + "x", Parent: parent, SandboxID: "a", Spec: r.child("x").Spec})
		if depth == 9 {
			if err == nil || !strings.Contains(err.Error(), "8 levels below the root") {
				t.Errorf("level 9: %v", err)
			}
			return
		}
		if err != nil || a.Depth != depth {
			t.Fatalf("level %d: %d, %v", depth, a.Depth, err)
		}
		parent = a.ID
	}
}

func TestAnAnswerHasOnlyTheNewestOfManyEndedChildren(t *testing.T) {
	var list []ledger.Agent
	for _, id := range []string{"over1", "lives1", "over2", "over3", "lives2", "over4"} {
		a := ledger.Agent{Record: agents.Record{ID: id, State: agents.Executing}}
		if strings.HasPrefix(id, "over") {
			a.State = agents.Completed
		}
		list = append(list, a)
	}
	for most, want := range map[int]string{2: "lives1 over3 lives2 over4", 0: "lives1 lives2", 4: "over1 lives1 over2 over3 lives2 over4", 9: "over1 lives1 over2 over3 lives2 over4"} {
		var got []string
		for _, a := range withNewestEnded(slices.Clone(list), most) {
			got = append(got, a.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("at most %d: %v; want %s", most, got, want)
		}
	}
}

func TestARequestNamesABoundedNumberOfAgents(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	got, code := r.make("spawn", `{"command":["x"],"name":"c"}`)
	r.want("spawn", code, "")
	name := func(n int) string {
		return strings.TrimSuffix(strings.Repeat(`"`+got["agent_id"].(string)+`",`, n), ",")
	}
	if got, code := r.make("wait", `{"agents":[`+name(maxNamed)+`]}`); got != nil || code != "" {
		t.Errorf("as many as possible: %v %s", got, code)
	}
	_, code = r.make("wait", `{"agents":[`+name(maxNamed+1)+`]}`)
	r.want("one more", code, "INVALID_REQUEST")
	_, code = r.make("spawn", `{"command":["x"],"after":[`+name(maxNamed+1)+`]}`)
	r.want("a child after one more", code, "INVALID_REQUEST")
}

func TestWaitAndKillReachOnlyDescendants(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	if got, code := r.make("wait", `{}`); code != "" || len(got["children"].([]any)) != 0 {
		t.Errorf("without children: %v %s", got, code)
	}
	spawn := func(name string) string {
		got, code := r.make("spawn", `{"command":["x"],"name":"`+name+`"}`)
		r.want("spawn", code, "")
		return got["agent_id"].(string)
	}
	one, two := spawn("one"), spawn("two")
	grandchild, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "g", Parent: one, SandboxID: "a", Spec: new(agboxv1.AgentSpec)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "stranger", SandboxID: "a", Spec: new(agboxv1.AgentSpec)}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"stranger", "x", "init", "nobody", ""} {
		_, code := r.make("kill", `{"agent":"`+id+`"}`)
		r.want("kill "+id, code, "AGENT_NOT_FOUND")
		_, code = r.make("wait", `{"agents":["`+id+`"]}`)
		r.want("wait "+id, code, "AGENT_NOT_FOUND")
	}
	_, code := r.make("kill", `{"agent":"one","mode":"softly"}`)
	r.want("a mode", code, "INVALID_REQUEST")
	if _, code := r.make("kill", `{"agent":"g","mode":"now"}`); code != "" || r.child(grandchild.ID).Kill.GetMode() != agboxv1.KillMode_KILL_MODE_NOW {
		t.Errorf("the grandchild: %s %v", code, r.child(grandchild.ID).Kill)
	}
	if got, code := r.make("wait", `{"agents":["one","`+two+`"],"any":true}`); got != nil || code != "" {
		t.Errorf("nobody has ended: %v %s", got, code)
	}
	enqueued := r.enqueued
	r.end(two)
	if r.enqueued == enqueued {
		t.Error("the end of a child does not enqueue its parent")
	}
	if got, _ := r.again(); got == nil || len(got["children"].([]any)) != 2 {
		t.Errorf("one has ended: %v", got)
	}
	if got, code := r.make("wait", `{}`); got != nil || code != "" {
		t.Errorf("one of two has ended: %v %s", got, code)
	}
	r.end(one)
	got, _ := r.again()
	if list := got["children"].([]any); len(list) != 2 || list[0].(map[string]any)["state"] != "ABORTED" || list[0].(map[string]any)["message"] != "enough" {
		t.Errorf("all have ended: %v", got)
	}
}

// A repeated request gets its child, whatever the install says by then.
func TestTheLifetimeOfAChildIsThatOfItsRequestItsStackOrTheInstall(t *testing.T) {
	const held, detached = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED
	for _, row := range []struct {
		name           string
		install, stack agboxv1.AgentLifetime
		fields         string
		want           agboxv1.AgentLifetime
	}{
		{"the install", held, 0, "", held},
		{"the install lets them go on", detached, 0, "", detached},
		{"the stack", held, detached, "", detached},
		{"the stack holds", detached, held, "", held},
		{"the request", held, held, `,"lifetime":"detached"`, detached},
		{"the request holds", detached, detached, `,"lifetime":"held"`, held},
	} {
		r := asking(t, &agboxv1.AgentSpec{MaySpawn: new(agboxv1.AgentMaySpawn), Stack: &agboxv1.AgentStack{Name: "team", ChildLifetime: row.stack}})
		r.LifetimeOfChildren(row.install)
		made, code := r.make("spawn", `{"command":["x"],"key":"k"`+row.fields+`}`)
		r.want(row.name, code, "")
		a := r.child(made["agent_id"].(string))
		if a.Spec.GetLifetime() != row.want || a.HeldBy("agent:"+a.Parent) != (row.want == held) {
			t.Errorf("%s: it is %v, with the holders %v", row.name, a.Spec.GetLifetime(), a.Holders)
		}
		r.LifetimeOfChildren(held + detached - row.install)
		_, code = r.make("spawn", `{"command":["x"],"key":"k"`+row.fields+`}`)
		r.want(row.name+", again", code, "")
	}
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: new(agboxv1.AgentMaySpawn)})
	_, code := r.make("spawn", `{"command":["x"],"stack":{"name":"s","child_lifetime":"long"}}`)
	r.want("no lifetime", code, "INVALID_REQUEST")
}

// TestAStackGetsASandboxOfItsOwn: the border of a stack protects unless the parent says
// otherwise, and the answer says which of both it is.
func TestAStackGetsASandboxOfItsOwn(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{
		Budget: &agboxv1.AgentBudget{CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Depth: 2}, User: "1000",
		Retry: &agboxv1.AgentRetry{Reduced: &agboxv1.AgentReduced{WithoutServices: []string{"db"}}},
	})
	for _, row := range []struct {
		fields, sandbox, border string
		notice                  bool
	}{
		{``, "shared", "", false},
		{`,"sandbox":"shared"`, "shared", "", false},
		{`,"sandbox":"new"`, "new", "", false},
		{`,"stack":{"name":"s"}`, "new", "protects", false},
		{`,"stack":{"name":"s"},"sandbox":"new"`, "new", "protects", false},
		{`,"stack":{"name":"s"},"sandbox":"shared"`, "shared", "orders", true},
	} {
		for range 2 { // repeated by the same key
			got, code := r.make("spawn", `{"command":["x"],"key":"`+fmt.Sprintf("%x", row.fields)+`"`+row.fields+`}`)
			r.want(row.fields, code, "")
			a := r.child(got["agent_id"].(string))
			border, _ := got["border"].(string)
			if own := row.sandbox == "new"; got["sandbox"] != row.sandbox || border != row.border || (got["notice"] != nil) != row.notice || a.Owned != own || got["sandbox_id"] != a.SandboxID {
				t.Errorf("%s: %v, owned %v in %s", row.fields, got, a.Owned, a.SandboxID)
			}
			if a.Owned {
				sb, _ := r.Ledger.Sandbox(a.SandboxID)
				if d := sb.Spec.GetDerived(); d.GetParent() != "x" || d.GetParentSandbox() != "a" || d.GetTree() != "x" || d.GetUser() != "1000" || a.Tree != "x" {
					t.Errorf("its sandbox is derived as %v, its tree is %s", d, a.Tree)
				}
				if a.Spec.GetRetry().GetReduced().GetWithoutServices() != nil {
					t.Error("it is to stop services that its sandbox does not have")
				}
			}
		}
	}
	if len(r.sandboxes) != 3 {
		t.Errorf("scheduled were %v", r.sandboxes)
	}
}

func TestWhatAParentMayNotSayAboutASandbox(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	for _, row := range []struct{ fields, code string }{
		{`"sandbox":"b"`, "INVALID_REQUEST"},
		{`"workspace":"copy"`, "INVALID_REQUEST"},
		{`"sandbox":"shared","limits":{"cpu":"1"}`, "INVALID_REQUEST"},
		{`"sandbox":"new","workspace":"/etc"`, "INVALID_REQUEST"},
		{`"sandbox":"new","workspace":"branch","name":"a..b"`, "INVALID_REQUEST"},
		{`"sandbox":"new","limits":{"disk":"1"}`, "INVALID_REQUEST"},
		{`"sandbox":"new","share_mounts":[{"target":"/etc","source":"/etc"}]`, "INVALID_REQUEST"},
		{`"sandbox":"new","share_mounts":[{"target":"/etc"}]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","share_tools":["ssh-agent"]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","allow_host":true`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","workspace":"shared"`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","limits":{"pids":5000}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","image":"x"`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","mounts":[{"source":"/","target":"/h"}]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","ports":[1]`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","security":{"privileged":true}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","derived":{"parent":"y"}`, "SPAWN_NOT_ALLOWED"},
		{`"sandbox":"new","services":[{}]`, "SPAWN_NOT_ALLOWED"},
	} {
		_, code := r.make("spawn", `{"command":["x"],`+row.fields+`}`)
		r.want(row.fields, code, row.code)
	}
	r.refused = fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, "The policy forbids it.")
	_, code := r.make("spawn", `{"command":["x"],"sandbox":"new"}`)
	r.want("what the operator forbids by now", code, "INVALID_REQUEST")
	if len(r.Ledger.Children("x")) != 0 || len(r.Ledger.Sandboxes()) != 1 || len(r.sandboxes) != 0 {
		t.Error("something was made")
	}
	none := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Sandboxes: proto.Uint32(0)}})
	_, code = none.make("spawn", `{"command":["x"],"stack":{"name":"s"}}`)
	none.want("a sandbox where there may be none", code, "SPAWN_NOT_ALLOWED")
	_, code = none.make("spawn", `{"command":["x"],"stack":{"name":"s"},"sandbox":"shared"}`)
	none.want("the remedy", code, "")
}

// TestAKeyStandsForOneSandbox: the same key with other fields of the sandbox is another request.
func TestAKeyStandsForOneSandbox(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	_, code := r.make("spawn", `{"command":["x"],"key":"k","sandbox":"new","limits":{"pids":10}}`)
	r.want("a child", code, "")
	for _, fields := range []string{`,"sandbox":"new","limits":{"pids":11}`, `,"sandbox":"new"`, `,"sandbox":"shared"`, ``} {
		_, code := r.make("spawn", `{"command":["x"],"key":"k"`+fields+`}`)
		r.want("another: "+fields, code, "REQUEST_KEY_REUSED")
	}
	if n := len(r.Ledger.Sandboxes()); n != 2 {
		t.Errorf("there are %d sandboxes", n)
	}
}

// TestAKeyStandsForItsChildAfterAnAdoption: the database was lost, and the spec of the sandbox is
// made of its container. What a request does not say may also have been written otherwise by an
// older daemon. Other fields of the agent are still another request.
func TestAKeyStandsForItsChildAfterAnAdoption(t *testing.T) {
	const spawn = `{"command":["x"],"key":"k","sandbox":"new","limits":{"pids":10}`
	lost := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	got, code := lost.make("spawn", spawn+`}`)
	lost.want("a child", code, "")
	known := lost.child(got["agent_id"].(string))
	sb, _ := lost.Ledger.Sandbox(known.SandboxID)
	older := proto.CloneOf(sb.Spec)
	older.Derived.Tree = "older"
	for name, spec := range map[string]*agboxv1.CreateSpec{"adopted": {Image: "sha256:1"}, "of an older daemon": older} {
		r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
		if _, err := r.Ledger.Create(t.Context(), known.SandboxID, spec); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Ledger.AdoptAgent(t.Context(), ledger.AdoptedAgent{
			ID: known.ID, Parent: "x", Depth: known.Depth, Tree: known.Tree, Spec: known.Spec, SandboxID: known.SandboxID, Owned: true,
		}); err != nil {
			t.Fatal(err)
		}
		got, code = r.make("spawn", spawn+`}`)
		if r.want(name+": the same request", code, ""); got["agent_id"] != known.ID {
			t.Errorf("%s: it is answered with %v", name, got)
		}
		_, code = r.make("spawn", spawn+`,"title":"another"}`)
		r.want(name+": another agent", code, "REQUEST_KEY_REUSED")
	}
}

// TestAKeyStandsForItsSandboxAfterAMove: the parent, whose sandbox was lost, asks again from another.
func TestAKeyStandsForItsSandboxAfterAMove(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{}})
	got, code := r.make("spawn", `{"command":["x"],"key":"k","sandbox":"new"}`)
	r.want("a child", code, "")
	made := r.child(got["agent_id"].(string))
	sb, _ := r.Ledger.Sandbox(made.SandboxID)
	n := ledger.NewAgent{Own: proto.CloneOf(sb.Spec)}
	n.Own.Derived.ParentSandbox = "remade-2-x"
	if r.ownDiffers(made, n) || n.Own.GetDerived().GetParentSandbox() != "remade-2-x" {
		t.Errorf("after the move it is another request, of %v", n.Own.GetDerived())
	}
	if n.Own.PidsLimit++; !r.ownDiffers(made, n) {
		t.Error("another request counts as the same")
	}
}

// TestATreeHasABoundedNumberOfSandboxes: those of all agents of the tree count, also when those
// above have ended and init has adopted them, until the sandboxes are removed.
func TestATreeHasABoundedNumberOfSandboxes(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Children: 100, Depth: 3, Sandboxes: proto.Uint32(3)}})
	var made []ledger.Agent
	for i := range 10 {
		got, code := r.make("spawn", fmt.Sprintf(`{"command":["x"],"sandbox":"new","key":"%d"}`, i))
		want := ""
		if i >= 3 {
			want = "AGENT_LIMIT"
		}
		r.want(fmt.Sprint("number ", i), code, want)
		if code == "" {
			made = append(made, r.child(got["agent_id"].(string)))
		}
	}
	first := made[0]
	if m := first.Spec.GetMaySpawn(); m.GetSandboxes() != 3 || m.GetDepth() != 2 {
		t.Errorf("a child may spawn %v", m)
	}
	below := func(key, parent string) error {
		p := r.child(parent)
		own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: parent, Tree: r.Ledger.TreeOf(p)}}
		_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: key, Parent: parent, SandboxID: "agent-" + key, Own: own, MaxSandboxes: 3, Spec: new(agboxv1.AgentSpec)})
		return err
	}
	if err := below("deep", first.ID); fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT {
		t.Errorf("a grandchild: %v", err)
	}
	// What a user spawns counts for nobody, and an agent that has ended counts while its sandbox is there.
	if _, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "other", SandboxID: "agent-other", Own: &agboxv1.CreateSpec{Image: "x"}, Spec: new(agboxv1.AgentSpec)}); err != nil {
		t.Error(err)
	}
	r.end(made[1].ID)
	_, code := r.make("spawn", `{"command":["x"],"sandbox":"new"}`)
	r.want("while the sandbox of one that has ended is there", code, "AGENT_LIMIT")
	r.remove(made[1].SandboxID)
	r.emit(r.agent(), &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{}},
	})
	r.end("x")
	if err := below("after", first.ID); err != nil {
		t.Errorf("after one was removed: %v", err)
	}
	if err := below("after-2", first.ID); fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT {
		t.Errorf("one too many below an adopted agent: %v", err)
	}
}

// remove records the removal of a sandbox.
func (r *requests) remove(id string) {
	r.t.Helper()
	if _, err := r.Ledger.RequestDelete(r.t.Context(), id); err != nil {
		r.t.Fatal(err)
	}
	sb, _ := r.Ledger.Sandbox(id)
	if _, err := r.Ledger.Emit(r.t.Context(), sb.Record, &agboxv1.SandboxEvent{EventType: agboxv1.EventType_SANDBOX_DELETED}); err != nil {
		r.t.Fatal(err)
	}
}

// TestSpawnsOfOneBatchAreCounted: all are decided before the first is committed.
func TestSpawnsOfOneBatchAreCounted(t *testing.T) {
	r := asking(t, new(agboxv1.AgentSpec))
	errs := make(chan error)
	for i := range 40 {
		go func() {
			id := fmt.Sprint("c", i)
			own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x"}}
			_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: "x", SandboxID: "agent-" + id, Own: own, MaxSandboxes: 5, Spec: new(agboxv1.AgentSpec)})
			errs <- err
		}()
	}
	accepted := 0
	for range 40 {
		switch err := <-errs; {
		case err == nil:
			accepted++
		case fault.ReasonOf(err) != agboxv1.ErrorReason_AGENT_LIMIT && fault.ReasonOf(err) != agboxv1.ErrorReason_BUDGET_EXHAUSTED:
			t.Error(err)
		}
	}
	if accepted != 5 {
		t.Errorf("%d were accepted", accepted)
	}
}

// TestASpawnIsAnsweredWhenTheWorkspaceIsCopied: what the parent changes after the answer is its
// own. A sandbox that fails or goes keeps nobody waiting.
func TestASpawnIsAnsweredWhenTheWorkspaceIsCopied(t *testing.T) {
	for name, event := range map[string]*agboxv1.SandboxEvent{
		"copied": {EventType: agboxv1.EventType_SANDBOX_FILES_COPIED},
		"failed": {EventType: agboxv1.EventType_SANDBOX_FAILED},
		"to go":  {EventType: agboxv1.EventType_SANDBOX_DELETE_REQUESTED},
	} {
		r := asking(t, new(agboxv1.AgentSpec))
		own := &agboxv1.CreateSpec{Image: "x", Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x", Workspace: "/workspace"}}
		a, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "c", Parent: "x", SandboxID: "agent-c", Own: own, MaxSandboxes: 1, Spec: new(agboxv1.AgentSpec)})
		if err != nil {
			t.Fatal(err)
		}
		if _, pending, err := r.answerSpawn(a); !pending || err != nil {
			t.Errorf("%s: before: %v, %v", name, pending, err)
		}
		sb, _ := r.Ledger.Sandbox("agent-c")
		if _, err := r.Ledger.Emit(t.Context(), sb.Record, event); err != nil {
			t.Fatal(errors.Join(errors.New(name), err))
		}
		if _, pending, err := r.answerSpawn(a); pending || err != nil {
			t.Errorf("%s: %v, %v", name, pending, err)
		}
	}
}

// TestARefusedSpawnLeavesNoKey: a sandbox with secret variables has a key on disk, and a program
// may ask for any number of sandboxes that it does not get.
func TestARefusedSpawnLeavesNoKey(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Sandboxes: proto.Uint32(1)}})
	for i, want := range []string{"", "AGENT_LIMIT", "AGENT_LIMIT"} {
		id := fmt.Sprint("c", i)
		own := &agboxv1.CreateSpec{Image: "x", Envs: map[string]string{"API_KEY": "canary"}, Derived: &agboxv1.DerivedSpec{Parent: "x", Tree: "x"}}
		_, err := r.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: id, Parent: "x", SandboxID: "agent-" + id, Own: own, MaxSandboxes: 1, Spec: new(agboxv1.AgentSpec)})
		if got := fault.ReasonOf(err).String(); want != "" && got != want || want == "" && err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	keys, err := os.ReadDir(filepath.Join(filepath.Dir(r.Install.Database()), "secret-keys"))
	if err != nil || len(keys) != 1 || keys[0].Name() != "agent-c0" {
		t.Errorf("the keys are %v, %v", keys, err)
	}
}
