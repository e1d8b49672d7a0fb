package gate

import (
	"fmt"
	"strings"
)

// Amount is what calls to models use, as far as a budget bounds it.
type Amount struct {
	InputTokens uint64
	// CostMicroUSD is in millionths of a US dollar.
	CostMicroUSD uint64
}

// Plus returns the sum of two amounts, or the greatest amount that there is.
func (a Amount) Plus(b Amount) Amount {
	return Amount{sum(a.InputTokens, b.InputTokens), sum(a.CostMicroUSD, b.CostMicroUSD)}
}

func sum(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

// Budget bounds what all incarnations of an agent together may use. 0 means no bound.
type Budget Amount

// Admits reports whether a call may be made that is estimated to use an amount, after what
// was used before. Nothing is admitted once a bound is reached.
func (b Budget) Admits(used, estimate Amount) bool {
	return fits(b.InputTokens, used.InputTokens, estimate.InputTokens) &&
		fits(b.CostMicroUSD, used.CostMicroUSD, estimate.CostMicroUSD)
}

func fits(bound, used, more uint64) bool {
	return bound == 0 || used < bound && more <= bound-used
}

// Sentence says that the budget is used up, after the given number of crashes. It names the
// bound of which the larger part is used, with the estimate of the call that was refused.
func (b Budget) Sentence(used, estimate Amount, crashes uint32) string {
	want := used.Plus(estimate)
	what := fmt.Sprintf("%d / %d input tokens max", used.InputTokens, b.InputTokens)
	if part(want.CostMicroUSD, b.CostMicroUSD) > part(want.InputTokens, b.InputTokens) {
		what = fmt.Sprintf("$%s / $%s max", dollars(used.CostMicroUSD), dollars(b.CostMicroUSD))
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

// Withheld says that children have so much of the budget that nothing is left for a call. It
// names the bound of which the larger part is taken.
func (b Budget) Withheld(used, children, estimate Amount) string {
	want := used.Plus(children).Plus(estimate)
	what := fmt.Sprintf("Of %d input tokens, the agent has used %d and its children have %d", b.InputTokens, used.InputTokens, children.InputTokens)
	if part(want.CostMicroUSD, b.CostMicroUSD) > part(want.InputTokens, b.InputTokens) {
		what = fmt.Sprintf("Of $%s, the agent has used $%s and its children have $%s", dollars(b.CostMicroUSD), dollars(used.CostMicroUSD), dollars(children.CostMicroUSD))
	}
	return what + ", so this call may not be made. What a child has not used comes back when it has ended: wait for that."
}

// part is the part of a bound that an amount is; -1 without a bound.
func part(amount, bound uint64) float64 {
	if bound == 0 {
		return -1
	}
	return float64(amount) / float64(bound)
}

// dollars writes an amount with two decimals, or with as many as it needs.
func dollars(micro uint64) string {
	cents := fmt.Sprintf("%02d", micro%1e6/1e4)
	rest := strings.TrimRight(fmt.Sprintf("%04d", micro%1e4), "0")
	return fmt.Sprintf("%d.%s%s", micro/1e6, cents, rest)
}
