package incarnations

import (
	"encoding/json"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
)

func TestTheEndHasTheStepOfTheLastBeat(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.write(journal.Row{Op: journal.Beat, Totals: &journal.Totals{InStep: true, Step: 3, Steps: 2, LLMCalls: 9, ToolCalls: 4}})
	b.consume()
	if p := b.agent().Progress; p.GetSteps() != 2 || p.GetLlmCalls() != 9 || p.GetToolCalls() != 4 {
		t.Errorf("the totals are %v", p)
	}
	b.write(journal.Row{Op: journal.Beat, Totals: &journal.Totals{InStep: true, Step: 4, Steps: 3, LLMCalls: 9, ToolCalls: 4}})
	_, reports, err := b.End(t.Context(), b.agent(), &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e", ExitCode: 1})
	if err != nil {
		t.Fatal(err)
	}
	end := reports.Events[len(reports.Events)-1].GetEnd()
	if end.Step == nil || end.GetStep() != 4 {
		t.Errorf("the end is %v; want step 4", end)
	}
}

func TestTheSuccessorGetsTheCrashesAndNotOurSIGKILL(t *testing.T) {
	r := agents.Record{
		Last: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, ExitCode: 137, Signal: 9},
		History: []*agboxv1.IncarnationEnd{
			{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 1, Attempt: 1, ErrorMessage: "no"},
			{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE, ExitCode: 137, Attempt: 2},
		},
	}
	raw, err := previous(r)
	if err != nil {
		t.Fatal(err)
	}
	type crash struct {
		ExitCode int    `json:"exit_code"`
		Attempt  int    `json:"attempt"`
		Message  string `json:"error_message"`
	}
	var got struct {
		crash
		History []crash `json:"history"`
	}
	if err := json.Unmarshal(raw, &got); err != nil || got.ExitCode != 143 || len(got.History) != 2 || got.History[0] != (crash{1, 1, "no"}) || got.History[1] != (crash{1, 2, ""}) {
		t.Errorf("the file is %s, %v", raw, err)
	}
}

func TestTheEndOfTheStandardError(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{"a\n\tb\x1b[2J\n\n", "a\n\tb [2J"},
		{strings.Repeat("x", maxStack) + "\nlast\n", "last"},
		{strings.Repeat("x", 9) + "\n" + strings.Repeat("y", maxStack-1) + "\n", strings.Repeat("y", maxStack-1)},
		{strings.Repeat("x", 2*maxStack), ""}, {"", ""},
	} {
		if _, got := words(row.text); got != row.want {
			t.Errorf("%.20q gives %.40q; want %.40q", row.text, got, row.want)
		}
	}
}

func TestAProgramThatOnlyAsksHasSpoken(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	b.write(journal.Row{Op: journal.Asked})
	b.consume()
	if b.see().Spoke {
		t.Error("a program that only asks must say how it goes on after a pause")
	}
	_, reports, err := b.End(t.Context(), b.agent(), &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e"})
	if err != nil {
		t.Fatal(err)
	}
	end := reports.Events[len(reports.Events)-1].GetEnd()
	if ev := agents.Ending(agents.Record{Last: end, Undecided: true}, agents.RulesOf(b.agent().Spec)); !end.GetSpoke() || ev.GetPause() == nil {
		t.Errorf("it ended with %v, which means %v", end, ev)
	}
}

func TestAReportedErrorIsThatOfTheEnd(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	limited := journal.Row{Op: journal.Error, Text: "rate limited", Stack: "at call", RetryAfterMS: 30_000}
	end := func() *agboxv1.IncarnationEnd {
		_, reports, err := b.End(t.Context(), b.agent(), &agboxv1.ExecStatus{SandboxId: "a", ExecId: "e", ExitCode: 1, Error: "It exited."})
		if err != nil {
			t.Fatal(err)
		}
		return reports.Events[len(reports.Events)-1].GetEnd()
	}
	b.write(limited)
	if got := end(); got.GetErrorMessage() != "rate limited" || got.GetErrorStack() != "at call" || got.GetRetryAfter().GetSeconds() != 30 {
		t.Errorf("the end is %v", got)
	}
	b.write(journal.Row{Op: journal.Step, Steps: 1})
	if got := end(); got.GetErrorMessage() != "It exited." || got.GetRetryAfter() != nil {
		t.Errorf("after it got on, the end is %v", got)
	}
	for _, bad := range []journal.Row{{Op: journal.Error}, {Op: journal.Error, Text: "x", RetryAfterMS: 86_400_001}, {Op: journal.Error, Text: "x", Stack: strings.Repeat("x", journal.MaxStack+1)}} {
		if _, err := journal.Start().Next(bad); err == nil {
			t.Errorf("%.40v was accepted", bad)
		}
	}
}
