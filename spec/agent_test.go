package spec

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// checkAgent is what the daemon passes to Resolve.
func checkAgent(s *agboxv1.AgentSpec, problem func(path []any, format string, args ...any)) {
	agents.Check(s, problem)
}

func TestTheAgentOfTheFileIsMergedWithThatOfTheFields(t *testing.T) {
	req := file(`
image: x
agent:
  name: fixer
  class: coder
  command: node agent.js
  envs: {A: file, B: file}
  heartbeat: {interval: 1s, required: true}
  retry: {attempts: 7, delays: [1s, 2s, 3s]}
  budget: {input_tokens: 0, cost_usd: 2.50}
`)
	req.CreateSpec = &agboxv1.CreateSpec{Agent: &agboxv1.AgentSpec{
		Name: "two", Command: []string{"sh"}, Envs: map[string]string{"B": "field"},
		Heartbeat: &agboxv1.AgentHeartbeat{Stale: durationpb.New(5 * time.Second)},
		Retry:     &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(9 * time.Second)}},
	}}
	wantYAML(t, good(t, req), `
image: x
agent:
  name: two
  class: coder
  command: [sh]
  envs: {A: file, B: field}
  heartbeat: {interval: 1s, required: true, stale: 5s}
  retry: {attempts: 7, delays: [9s]}
  budget: {input_tokens: 0, cost_usd: "2.50"}
`)
}

func TestTheAgentOfASandboxIsMergedWithThatOfTheFields(t *testing.T) {
	rules := protovalidate.GlobalValidator
	in := Input{Rules: rules, Host: testHost, CheckAgent: checkAgent}
	block := &agboxv1.AgentSpec{Name: "fixer", Command: []string{"node", "agent.js"}}
	sandbox := &agboxv1.CreateSpec{Image: "x", Agent: block, Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "y"}}}
	reduced := func(service string) *agboxv1.AgentRetry {
		return &agboxv1.AgentRetry{Reduced: &agboxv1.AgentReduced{WithoutServices: []string{service}}}
	}
	r := ResolveAgent(in, sandbox, &agboxv1.AgentSpec{Name: "two", Work: "/src/../src/task.md", Retry: reduced("db")})
	if s := r.Spec.GetAgent(); s.GetName() != "two" || s.GetWork() != "/src/task.md" || strings.Join(s.GetCommand(), " ") != "node agent.js" || block.GetName() != "fixer" {
		t.Errorf("got %v, problems %v", s, r.Problems)
	}
	for _, bad := range []*agboxv1.AgentSpec{
		{Envs: map[string]string{"API_KEY": "x"}}, {Name: "A"}, {Command: []string{"a\x00"}},
		{Heartbeat: &agboxv1.AgentHeartbeat{Zombie: durationpb.New(time.Second)}}, {Work: "task.md"}, {Work: "/etc/shadow"}, {Work: "/proc/1/mem"}, {Retry: reduced("web")},
	} {
		if r := ResolveAgent(in, sandbox, bad); r.Spec != nil || len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].GetField(), "agent.") {
			t.Errorf("%v: problems %v", bad, r.Problems)
		}
	}
	block.Envs = map[string]string{"A": "1", "AGBOX_MODE": "from before it was refused"}
	if r := ResolveAgent(in, sandbox, &agboxv1.AgentSpec{Name: "two"}); fmt.Sprint(r.Spec.GetAgent().GetEnvs()) != "map[A:1]" || len(block.GetEnvs()) != 2 {
		t.Errorf("of the variables of the sandbox's agent %v one gets %v, problems %v", block.GetEnvs(), r.Spec.GetAgent().GetEnvs(), r.Problems)
	}
	if r := ResolveAgent(in, sandbox, &agboxv1.AgentSpec{Envs: map[string]string{"AGBOX_MODE": "x"}}); len(r.Problems) != 1 {
		t.Errorf("a variable of agbox in the fields: problems %v", r.Problems)
	}
	if r := ResolveAgent(in, nil, nil); len(r.Problems) > 0 || r.Spec.GetAgent() != nil {
		t.Errorf("no agent at all: %v, %v", r.Spec, r.Problems)
	}
}
