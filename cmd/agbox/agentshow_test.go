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
