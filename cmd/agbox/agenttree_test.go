package main

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
