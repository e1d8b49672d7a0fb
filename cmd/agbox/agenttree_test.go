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
