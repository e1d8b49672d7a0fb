package faults

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// table collects the faults that the tests of this package injected. FAULTS.md numbers
// the faults and lists those without a test, with the reason.
var table struct {
	mu   sync.Mutex // guards rows
	rows []*row
}

// row is one line of the table: a fault as one test injects it.
type row struct {
	number int
	words  string
	times  int
	began  time.Time
	took   time.Duration
	notes  []string
	result string
}

// Row adds a fault to the table: its number in FAULTS.md, a short description, and how
// many times this test injects it. Its result is that of the test. A test of several
// faults calls Row once for each.
func Row(t *testing.T, number int, words string, times int) *row {
	t.Helper()
	r := &row{number: number, words: words, times: times, began: time.Now(), result: "did not end"}
	table.mu.Lock()
	table.rows = append(table.rows, r)
	table.mu.Unlock()
	t.Cleanup(func() {
		table.mu.Lock()
		defer table.mu.Unlock()
		r.took = time.Since(r.began)
		switch {
		case t.Failed():
			r.result = "FAILED"
		case t.Skipped():
			r.result = "SKIPPED"
		default:
			r.result = "ok"
		}
	})
	return r
}

// Ran corrects the number of times if it is known only after the run.
func (r *row) Ran(times int) {
	table.mu.Lock()
	defer table.mu.Unlock()
	r.times = times
}

// Note adds a measured figure below the line.
func (r *row) Note(format string, args ...any) {
	table.mu.Lock()
	defer table.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// printTable prints all rows in the order of their numbers and reports whether
// every one of them is green.
func printTable(out io.Writer) (green bool) {
	table.mu.Lock()
	defer table.mu.Unlock()
	slices.SortStableFunc(table.rows, func(a, b *row) int { return cmp.Compare(a.number, b.number) })
	green = true
	width := 0
	for _, r := range table.rows {
		width = max(width, len(r.words))
	}
	fmt.Fprintf(out, "\n %-2s  %-*s  %5s  %-6s  %7s\n", "#", width, "fault", "times", "result", "took")
	for _, r := range table.rows {
		green = green && r.result == "ok"
		fmt.Fprintf(out, " %2d  %-*s  %5d  %-6s  %6.1fs\n", r.number, width, r.words, r.times, r.result, r.took.Seconds())
		for _, note := range r.notes {
			fmt.Fprintf(out, "       %s\n", note)
		}
	}
	return green
}
