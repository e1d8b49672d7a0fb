package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/agbox/agbox/cmd/agbox/view"
	"github.com/agbox/agbox/spec/trust"
)

// maxDiff bounds the lines of a diff where no terminal does. `agbox trust show` prints the
// whole content.
const maxDiff = 40

// extent bounds a screen. The zero value bounds only the diff.
type extent struct {
	// columns and rows are those of a terminal, of which the screen may take all rows.
	columns, rows int
	// all means no bounds.
	all bool
}

func (v extent) bounded() bool { return v.columns > 0 && !v.all }

// short is a line of at most two rows. Its end stays, where the place in the file is.
func (v extent) short(line string) string {
	line = strings.TrimRight(line, " ")
	if !v.bounded() || view.Width(line) <= 2*v.columns {
		return line
	}
	runes := []rune(line)
	half := max(1, v.columns/2-1) // a character may have two columns
	return string(runes[:half]) + "…" + string(runes[len(runes)-half:])
}

// height is how many rows lines take.
func (v extent) height(lines []string) int {
	rows := 0
	for _, line := range lines {
		rows += max(1, (view.Width(line)+v.columns-1)/max(1, v.columns))
	}
	return rows
}

// fit returns how many of the lines fit into some rows, and how many rows that leaves. If
// not all lines fit, one of the rows is for their count.
func (v extent) fit(lines []string, rows int) (fits, left int) {
	if !v.bounded() {
		return len(lines), rows
	}
	if all := v.height(lines); all <= rows {
		return len(lines), rows - all
	}
	for rows--; fits < len(lines); fits++ {
		one := v.height(lines[fits : fits+1])
		if one > rows {
			break
		}
		rows -= one
	}
	return fits, rows
}

// requestScreen is what a person sees before the decision: what is dangerous first, and of
// that what is new. What does not fit is counted, and whole is false. Control characters
// from files are escaped.
func requestScreen(q trust.Question, before *trust.Answer, v extent) (text string, whole bool) {
	var change trust.Change
	var legend, since, gone, diff []string
	if before != nil {
		change = q.Since(before)
		since = []string{"", fmt.Sprintf("You agreed to an earlier version on %s. Since then:", before.TrustedAt.Local().Format("2006-01-02 15:04"))}
		for _, r := range change.Gone {
			gone = append(gone, v.short(" -  "+printable(r.Text)))
		}
		for _, line := range changedLines(change) {
			diff = append(diff, v.short("  "+line))
		}
	}
	head := []string{v.short(printable(cmp.Or(q.Title, q.Path+" requests access to this machine:"))), ""}
	requests := dangersFirst(q.Requests, change.New)
	if len(requests) > 0 && requests[0].Dangerous {
		legend = []string{"", " ! weakens the protection of this machine, or reaches outside the folder of the file."}
	}
	lines := requestLines(requests, change.New, v)

	left := math.MaxInt
	if v.bounded() {
		left = v.rows - v.height(slices.Concat(head, legend, since)) - min(len(gone), 1) - min(len(diff), 1)
	}
	shown, left := v.fit(lines, left)
	shownGone, left := v.fit(gone, left+min(len(gone), 1))
	shownDiff, _ := v.fit(diff, left+min(len(diff), 1))
	if !v.bounded() && !v.all {
		shownDiff = min(shownDiff, maxDiff)
	}
	body := slices.Concat(head, lines[:shown])
	if hidden := requests[shown:]; len(hidden) > 0 {
		body = append(body, fmt.Sprintf("    ... and %d more, %d of them dangerous", len(hidden), dangerous(hidden)))
	}
	body = append(body, gone[:shownGone]...)
	if hidden := len(gone) - shownGone; hidden > 0 {
		body = append(body, fmt.Sprintf(" -  %d that are requested no longer", hidden))
	}
	body = slices.Concat(body, legend, since, diff[:shownDiff])
	if hidden := len(diff) - shownDiff; hidden > 0 {
		body = append(body, fmt.Sprintf("  ... and %d more lines", hidden))
	}
	whole = shown == len(lines) && shownGone == len(gone) && shownDiff == len(diff) && !slices.ContainsFunc(body, func(line string) bool { return strings.Contains(line, "…") })
	return strings.Join(body, "\n") + "\n", whole
}

// dangersFirst returns the dangerous requests before the others, and of each the new ones first.
func dangersFirst(requests, fresh []trust.Request) []trust.Request {
	rank := func(r trust.Request) (rank int) {
		if !r.Dangerous {
			rank += 2
		}
		if !slices.Contains(fresh, r) {
			rank++
		}
		return rank
	}
	return slices.SortedStableFunc(slices.Values(requests), func(x, y trust.Request) int { return cmp.Compare(rank(x), rank(y)) })
}

// dangerous counts dangerous requests.
func dangerous(requests []trust.Request) (n int) {
	for _, r := range requests {
		if r.Dangerous {
			n++
		}
	}
	return n
}

// requestLines are the lines of requests.
func requestLines(requests, fresh []trust.Request, v extent) []string {
	width := 0
	for _, r := range requests {
		// One long text must not widen the lines of the others.
		if n := len([]rune(printable(r.Text))); r.Where != "" && (!v.bounded() || n <= v.columns) {
			width = max(width, n)
		}
	}
	var lines []string
	for _, r := range requests {
		mark, novelty := " ", " "
		if r.Dangerous {
			mark = "!"
		}
		if slices.Contains(fresh, r) {
			novelty = "+"
		}
		lines = append(lines, v.short(fmt.Sprintf(" %s%s %-*s  %s", novelty, mark, width, printable(r.Text), printable(r.Where))))
	}
	return lines
}

// changedLines are the changed lines of all files.
func changedLines(change trust.Change) []string {
	var lines []string
	for _, f := range change.Files {
		switch {
		case f.Added:
			lines = append(lines, "new file "+printable(f.Path))
		case f.Removed:
			lines = append(lines, "no longer used: "+printable(f.Path))
		case f.Before == f.After:
			lines = append(lines, "changed: "+printable(f.Path)+" (its values are not shown)")
		}
		if f.Before != f.After && !f.Removed {
			text := udiff.Unified("before", "now", f.Before, f.After)
			for line := range strings.Lines(text) {
				lines = append(lines, printable(strings.TrimSuffix(line, "\n")))
			}
		}
	}
	return lines
}
