package journal

import (
	"errors"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents/gate"
)

func TestRowsOfTheContext(t *testing.T) {
	s := Start()
	for _, r := range []Row{
		{Op: Context, Percent: 71, Context: gate.Aging},
		{Op: Turn, Percent: 60, Context: gate.Aging},
		{Op: Gate, Kind: Tool, Name: "Write", Percent: 91, Context: gate.Dying},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: 5}, Context: gate.Dying},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: 7}, Refused: true, Context: gate.Dying},
		{Op: Turn, Context: gate.Dead},
	} {
		next, err := s.Next(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		s = next
	}
	want := Summary{
		Rows: 6, Lifecycle: Booting, Phase: Executing, Turns: 2, Percent: 91, Context: gate.Dead, OverBudget: true, Estimate: Used{InputTokens: 7},
	}
	if s != want {
		t.Errorf("the summary is %+v; want %+v", s, want)
	}
	for _, r := range []Row{
		{Op: Turn}, {Op: Turn, Context: gate.Healthy}, {Op: Context, Context: "FULL"},
		{Op: Context, Percent: gate.MaxPercent + 1, Context: gate.Dead},
		{Op: Gate, Context: gate.Dead}, {Op: Gate, Kind: "car", Context: gate.Dead},
		{Op: Gate, Kind: Tool, Name: strings.Repeat("x", MaxName+1), Context: gate.Dead},
		{Op: Gate, Kind: Tool, Name: "\x1b", Context: gate.Dead},
		{Op: Gate, Kind: LLM, Used: &Used{InputTokens: maxCount + 1}, Context: gate.Dead},
	} {
		next, err := s.Next(r)
		if refusal := Refusal(""); !errors.As(err, &refusal) || next != s {
			t.Errorf("%+v: %v, and the summary is %+v", r, err, next)
		}
	}
}
