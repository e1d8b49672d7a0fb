package agent

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Exhausted reports whether nothing more may be used.
func (b Budget) Exhausted(used *agboxv1.AgentUsage) bool {
	return b.InputTokens > 0 && used.GetInputTokens() >= b.InputTokens ||
		b.CostMicroUSD > 0 && used.GetCostMicroUsd() >= b.CostMicroUSD
}

// Sentence says that the budget is used up, after the given number of crashes.
func (b Budget) Sentence(used *agboxv1.AgentUsage, crashes uint32) string {
	what := fmt.Sprintf("%d / %d input tokens max", used.GetInputTokens(), b.InputTokens)
	if b.CostMicroUSD > 0 && (b.InputTokens == 0 || used.GetInputTokens() < b.InputTokens) {
		what = fmt.Sprintf("$%s / $%s max", dollars(used.GetCostMicroUsd()), dollars(b.CostMicroUSD))
	}
	cycles := ""
	switch {
	case crashes == 1:
		cycles = "1 crash-recovery cycle consumed tokens without completing the job. "
	case crashes > 1:
		cycles = fmt.Sprintf("%d crash-recovery cycles consumed tokens without completing the job. ", crashes)
	}
	return fmt.Sprintf("Job failed: token budget exhausted (%s). %sManual intervention required.", what, cycles)
}

// dollars writes an amount with two decimals, or with as many as it needs.
func dollars(micro uint64) string {
	cents := fmt.Sprintf("%02d", micro%1e6/1e4)
	rest := strings.TrimRight(fmt.Sprintf("%04d", micro%1e4), "0")
	return fmt.Sprintf("%d.%s%s", micro/1e6, cents, rest)
}
