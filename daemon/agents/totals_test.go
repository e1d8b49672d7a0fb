package agents

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/journal"
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
