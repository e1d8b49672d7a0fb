package journal

import (
	"slices"
	"testing"
)

func TestBeatsHaveTotalsAndTheStepUnderWay(t *testing.T) {
	s := Start()
	add := func(r Row) {
		t.Helper()
		next, err := s.Next(r)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	want := func(step int64, steps, llm, tools uint64) {
		t.Helper()
		gotSteps, gotLLM, gotTools := s.Counts()
		is := int64(-1)
		if last := s.LastStep(); last != nil {
			is = int64(*last)
		}
		if is != step || gotSteps != steps || gotLLM != llm || gotTools != tools {
			t.Errorf("step %d, %d steps, %d calls to models, %d of tools; want %d, %d, %d, %d", is, gotSteps, gotLLM, gotTools, step, steps, llm, tools)
		}
	}
	want(-1, 0, 0, 0)
	add(Row{Op: Step, Steps: 2})
	want(2, 2, 0, 0)
	add(Row{Op: Beat})
	want(2, 2, 0, 0)
	add(Row{Op: Beat, Totals: &Totals{InStep: true, Step: 0, Steps: 3, LLMCalls: 9, ToolCalls: 4}})
	want(0, 3, 9, 4)
	add(Row{Op: Call, Phase: Begin, Kind: Tool, Name: "x", Invocation: "1"}) // is among those 4
	add(Row{Op: Beat, Totals: &Totals{Steps: 1, LLMCalls: 10}})
	want(-1, 3, 10, 4)
	if _, err := s.Next(Row{Op: Beat, Totals: &Totals{ToolCalls: maxCount + 1}}); err == nil {
		t.Error("a total that is too high was accepted")
	}
}

func TestTheWayBetweenTwoStates(t *testing.T) {
	for _, row := range []struct {
		from, to string
		want     []string
	}{
		{Booting, Executing, []string{Hydrating, Ready, Executing}},
		{Booting, Terminated, []string{Terminated}},
		{Ready, Terminated, []string{Executing, Terminated}},
		{Executing, Ready, nil}, {Draining, Executing, nil}, {Booting, "DANCING", nil},
	} {
		if got := Between(row.from, row.to); !slices.Equal(got, row.want) {
			t.Errorf("from %s to %s: %q; want %q", row.from, row.to, got, row.want)
		}
	}
}
