package main

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestTheNoteOfAnAgentSaysMostAboutIt(t *testing.T) {
	g := &agboxv1.Agent{}
	for _, step := range []struct {
		set  func()
		want string
	}{
		{func() {}, "-"},
		{func() { g.Title = "Mends the tests" }, "Mends the tests"},
		{func() { g.Progress = &agboxv1.AgentProgress{LastMessage: "step 2\n of 5"} }, "step 2 of 5"},
		{func() { g.Message = "It was drained." }, "It was drained."},
		{func() { g.Degraded = "Its sandbox does not answer." }, "Its sandbox does not answer."},
	} {
		step.set()
		if got := agentNote(g); got != step.want {
			t.Errorf("it is %q, want %q", got, step.want)
		}
	}
}

func TestAnEmptyMessageIsShownAsOne(t *testing.T) {
	var b strings.Builder
	if err := printOutline(&b, &agboxv1.Agent{Name: "x", Progress: &agboxv1.AgentProgress{Total: &agboxv1.AgentUsage{}, LastMessage: "hi"}}, 0); err != nil {
		t.Fatal(err)
	}
	if want := "name: x\nprogress:\n  total: {}\n  last_message: hi\n"; b.String() != want {
		t.Errorf("it is\n%s", b.String())
	}
}

func TestTheTreeSaysWhatTheBorderOfAStackDoes(t *testing.T) {
	for border, want := range map[agboxv1.StackBorder]string{
		agboxv1.StackBorder_STACK_BORDER_UNSPECIFIED: "detached",
		agboxv1.StackBorder_STACK_BORDER_ORDERS:      "stack team, whose border orders and does not protect; detached",
		agboxv1.StackBorder_STACK_BORDER_PROTECTS:    "stack team; detached",
	} {
		a := &agboxv1.Agent{Parent: "p", Stack: "team", Border: border, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED}
		if got := treeNote(a); got != want {
			t.Errorf("%v: %q; want %q", border, got, want)
		}
	}
}

func TestTheTreeSaysWhoHoldsAChild(t *testing.T) {
	held := agboxv1.AgentLifetime_AGENT_LIFETIME_HELD
	for want, a := range map[string]*agboxv1.Agent{
		"held by its parent": {Parent: "p", Lifetime: held, Holders: []string{"agent:p"}},
		"held by nobody":     {Parent: "p", Lifetime: held},
		"held by 1":          {Parent: "init", Lifetime: held, Holders: []string{"client:c"}},
		"held by 2":          {Parent: "p", Lifetime: held, Holders: []string{"agent:p", "client:c"}},
		"detached":           {Parent: "p", Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED},
		"-":                  {Parent: "init", Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED},
	} {
		if got := treeNote(a); got != want {
			t.Errorf("%v: %q; want %q", a, got, want)
		}
	}
}
