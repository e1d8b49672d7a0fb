package gate

import (
	"math"
	"testing"
	"testing/quick"
)

var budget = Budget{InputTokens: 500_000, CostMicroUSD: 5_000_000}

func TestWhatABudgetAdmits(t *testing.T) {
	for _, row := range []struct {
		name           string
		budget         Budget
		used, estimate Amount
		want           bool
	}{
		{"nothing used", budget, Amount{}, Amount{}, true},
		{"up to the bound", budget, Amount{400_000, 4_000_000}, Amount{100_000, 1_000_000}, true},
		{"one token too many", budget, Amount{400_000, 0}, Amount{100_001, 0}, false},
		{"a millionth too many", budget, Amount{0, 4_000_000}, Amount{0, 1_000_001}, false},
		{"tokens reached", budget, Amount{500_000, 0}, Amount{}, false},
		{"cost reached", budget, Amount{0, 5_000_000}, Amount{}, false},
		{"no bound", Budget{}, Amount{math.MaxUint64, math.MaxUint64}, Amount{math.MaxUint64, 1}, true},
		{"only tokens bounded", Budget{InputTokens: 10}, Amount{9, 1 << 50}, Amount{1, 1 << 50}, true},
		{"an estimate that overflows", budget, Amount{1, 1}, Amount{math.MaxUint64, 0}, false},
	} {
		if got := row.budget.Admits(row.used, row.estimate); got != row.want {
			t.Errorf("%s: %v; want %v", row.name, got, row.want)
		}
	}
	// Whatever is admitted and then used as estimated never exceeds the budget.
	within := func(used, estimate Amount) bool {
		after := used.Plus(estimate)
		return !budget.Admits(used, estimate) || after.InputTokens <= budget.InputTokens && after.CostMicroUSD <= budget.CostMicroUSD
	}
	if err := quick.Check(within, nil); err != nil {
		t.Error(err)
	}
}

func TestTheSentenceOfAnExhaustedBudget(t *testing.T) {
	for _, row := range []struct {
		used, estimate Amount
		crashes        uint32
		want           string
	}{
		{Amount{1000, 4_850_000}, Amount{CostMicroUSD: 200_000}, 3,
			"Job failed: token budget exhausted ($4.85 / $5.00 max). 3 crash-recovery cycles consumed tokens without completing the job. Manual intervention required."},
		{Amount{500_000, 0}, Amount{}, 1,
			"Job failed: token budget exhausted (500000 / 500000 input tokens max). 1 crash-recovery cycle consumed tokens without completing the job. Manual intervention required."},
		{Amount{490_000, 4_890_000}, Amount{InputTokens: 20_000}, 0,
			"Job failed: token budget exhausted (490000 / 500000 input tokens max). Manual intervention required."},
	} {
		if got := budget.Sentence(row.used, row.estimate, row.crashes); got != row.want {
			t.Errorf("the sentence is %q; want %q", got, row.want)
		}
	}
	if got := (Budget{CostMicroUSD: 1}).Sentence(Amount{1 << 40, 1}, Amount{}, 0); got != "Job failed: token budget exhausted ($0.000001 / $0.000001 max). Manual intervention required." {
		t.Errorf("with one bound only: %q", got)
	}
	for micro, want := range map[uint64]string{0: "0.00", 10_000: "0.01", 4_850_000: "4.85", 5_000_001: "5.000001", 1_500: "0.0015", 12_000_000: "12.00"} {
		if got := dollars(micro); got != want {
			t.Errorf("%d millionths are $%s; want $%s", micro, got, want)
		}
	}
}
