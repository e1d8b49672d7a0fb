// Package results has what the end-to-end suites with a list share: it reads the list,
// such as ATTACKS.md, checks that the tests in it exist, and prints the results of a run
// as a table.
package results

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Results of a row beside Table.Good.
const (
	failed   = "FAILED"
	skipped  = "SKIPPED"
	notEnded = "did not end"
)

// Table collects the rows that the tests of one package did. Set the exported fields
// before the first row.
type Table struct {
	// Kind is the heading of the column that describes the rows, for example "attack".
	Kind string
	// Good is the result of a row whose test passed.
	Good string
	// Counted adds a column with the number of times.
	Counted bool

	mu   sync.Mutex // guards rows and their fields
	rows []*Row
}

// Row is one line of a table: one entry of the list as one test does it.
type Row struct {
	table  *Table
	number int
	words  string
	times  int
	took   time.Duration
	notes  []string
	result string
}

// Row adds a line: the number of its entry in the list, a short description, and how many
// times the test does it. Its result is that of the test. A test that does several calls
// Row once for each.
func (tb *Table) Row(t testing.TB, number int, words string, times int) *Row {
	t.Helper()
	began := time.Now()
	r := &Row{table: tb, number: number, words: words, times: times, result: notEnded}
	tb.mu.Lock()
	tb.rows = append(tb.rows, r)
	tb.mu.Unlock()
	t.Cleanup(func() {
		tb.mu.Lock()
		defer tb.mu.Unlock()
		r.took = time.Since(began)
		switch {
		case t.Failed():
			r.result = failed
		case t.Skipped():
			r.result = skipped
		default:
			r.result = tb.Good
		}
	})
	return r
}

// Ran corrects the number of times if it is known only after the run.
func (r *Row) Ran(times int) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.times = times
}

// Note adds a measured figure below the line.
func (r *Row) Note(format string, args ...any) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// Print prints all rows in the order of their numbers and reports whether all are good.
func (tb *Table) Print(out io.Writer) (good bool) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	slices.SortStableFunc(tb.rows, func(a, b *Row) int { return cmp.Compare(a.number, b.number) })
	good = true
	width := 0
	for _, r := range tb.rows {
		width = max(width, len(r.words))
	}
	line := func(number any, words, times, result, took string) {
		if tb.Counted {
			words = fmt.Sprintf("%-*s  %5s", width, words, times)
		}
		fmt.Fprintf(out, " %3v  %-*s  %-7s  %7s\n", number, width, words, result, took)
	}
	fmt.Fprintln(out)
	line("#", tb.Kind, "times", "result", "took")
	for _, r := range tb.rows {
		good = good && r.result == tb.Good
		line(r.number, r.words, fmt.Sprint(r.times), r.result, fmt.Sprintf("%.1fs", r.took.Seconds()))
		for _, note := range r.notes {
			fmt.Fprintf(out, "       %s\n", note)
		}
	}
	return good
}

// Count returns how many rows are good, and how many there are.
func (tb *Table) Count() (good, all int) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	for _, r := range tb.rows {
		if r.result == tb.Good {
			good++
		}
	}
	return good, len(tb.rows)
}

// Verdict prints the table. It returns an error if a row is not good, or if all tests of
// the package ran and an entry of the list that names one of them has no row. The folder is
// the package's, relative to the repository.
func (tb *Table) Verdict(out io.Writer, list func() ([]Entry, error), folder string) error {
	if !tb.Print(out) {
		return fmt.Errorf("not every %s in the table is %s", tb.Kind, tb.Good)
	}
	for _, name := range []string{"test.run", "test.skip"} {
		if only := flag.Lookup(name); only != nil && only.Value.String() != "" {
			return nil // only some tests ran
		}
	}
	entries, err := list()
	if err != nil {
		return err
	}
	if missing := tb.missing(entries, folder); len(missing) > 0 {
		return fmt.Errorf("no test made %s %s", tb.Kind, strings.Join(missing, ", "))
	}
	return nil
}

// missing returns those of the entries that have a test in a folder of which the table has
// no row. The folder is relative to the repository.
func (tb *Table) missing(entries []Entry, folder string) (numbers []string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	done := make(map[int]bool)
	for _, r := range tb.rows {
		done[r.number] = true
	}
	for _, e := range entries {
		if !done[e.Number] && slices.ContainsFunc(e.Tests, func(test Test) bool { return test.Folder == folder }) {
			numbers = append(numbers, fmt.Sprint(e.Number))
		}
	}
	return numbers
}
