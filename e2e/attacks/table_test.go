package attacks

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"
)

// table collects the attacks that the tests of this package performed.
var table struct {
	mu   sync.Mutex // guards rows
	rows []*row
}

// row is one line of the table: an attack as one test performs it.
type row struct {
	number int
	words  string
	began  time.Time
	took   time.Duration
	result string
}

// Row enters an attack in the table: its number in ATTACKS.md and what is done, in a
// few words. Its result is the test's. A test that makes several attacks calls it once
// for each.
func Row(t *testing.T, number int, words string) {
	t.Helper()
	r := &row{number: number, words: words, began: time.Now(), result: "did not end"}
	table.mu.Lock()
	table.rows = append(table.rows, r)
	table.mu.Unlock()
	t.Cleanup(func() {
		table.mu.Lock()
		defer table.mu.Unlock()
		r.took = time.Since(r.began)
		r.result = "held"
		if t.Failed() {
			r.result = "FAILED"
		}
	})
}

// printTable prints all rows in the order of their numbers. It reports whether every
// attack was held off.
func printTable(out io.Writer) (green bool) {
	table.mu.Lock()
	defer table.mu.Unlock()
	slices.SortStableFunc(table.rows, func(a, b *row) int { return cmp.Compare(a.number, b.number) })
	green = true
	width := 0
	for _, r := range table.rows {
		width = max(width, len(r.words))
	}
	fmt.Fprintf(out, "\n %-2s  %-*s  %-6s  %7s\n", "#", width, "attack", "result", "took")
	for _, r := range table.rows {
		green = green && r.result == "held"
		fmt.Fprintf(out, " %2d  %-*s  %-6s  %6.1fs\n", r.number, width, r.words, r.result, r.took.Seconds())
	}
	return green
}
