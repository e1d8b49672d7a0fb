package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// question is what a person must agree to before files that came with a folder take
// effect; nil if the files request nothing of the host.
func question(input *client.SpecInput, asked *agboxv1.HostRequests) *trustQuestion {
	if len(input.Files) == 0 || len(asked.GetRequests())+len(input.Variables) == 0 {
		return nil
	}
	q := &trustQuestion{Path: input.Files[0].Path}
	for _, f := range input.Files {
		q.Files = append(q.Files, newTrustFile(f.Path, f.Content, f.Secret))
	}
	for _, r := range asked.GetRequests() {
		one := hostRequest{Text: fmt.Sprintf("%-9s %s", r.GetKind(), r.GetText()), Dangerous: r.GetDangerous()}
		if r.GetFile() != "" {
			one.Where = fmt.Sprintf("%s:%d", filepath.Base(r.GetFile()), r.GetLine())
		}
		q.Requests = append(q.Requests, one)
	}
	for _, name := range input.Variables {
		q.Requests = append(q.Requests, hostRequest{Text: fmt.Sprintf("%-9s %s, with its value in your environment", "variable", name)})
	}
	return q
}

// trustedByPolicy reports whether the operator trusts the files of a folder.
func trustedByPolicy(ctx context.Context, c *client.Client, folder string) (bool, error) {
	if err := c.Connect(ctx); err != nil {
		return false, err
	}
	out, err := c.ResolveSpec(ctx, &agboxv1.CreateSandboxRequest{ConfigDir: folder, CreateSpec: &agboxv1.CreateSpec{Image: "none"}})
	return out.GetHostRequests().GetTrustedByPolicy(), err
}

// askForTrust asks the question, and stores the answer if it is yes.
func (a *app) askForTrust(ctx context.Context, store trustStore, q trustQuestion, before *trustAnswer) error {
	yes, err := a.ask(ctx, q, before, "Allow this, and remember the answer for this content?")
	switch {
	case err != nil:
		return err
	case !yes:
		return toldError{errNotTrusted(q.Path)}
	}
	return store.remember(q, a.now())
}

// canAsk reports whether a person can be asked.
func (a *app) canAsk(q trustQuestion) bool {
	return q.Path != "-" && a.terminal() != nil && a.width() != 0
}

// ask shows a question, and reports whether the answer is yes.
func (a *app) ask(ctx context.Context, q trustQuestion, before *trustAnswer, ask string) (bool, error) {
	const about = " (all shows the rest)"
	v := extent{columns: a.width(), rows: usualRows}
	if size := a.terminal().size(); size != nil {
		v.rows = int(size.GetRows())
	}
	// The question itself stands below the screen, behind an empty line.
	v.rows -= 2 + v.height([]string{ask + about + " [y/N] "})
	for {
		text, whole := requestScreen(q, before, v)
		asked := ask
		if !whole {
			asked += about
		}
		fmt.Fprint(a.stderr, "\n", text, "\n")
		answer, err := a.answer(ctx, asked)
		switch {
		case err != nil:
			return false, err
		case answer != "all":
			return isYes(answer), nil
		}
		text, _ = requestScreen(q, before, extent{all: true})
		fmt.Fprint(a.stderr, "\n", text)
	}
}

// errNotTrusted means the person answered no.
func errNotTrusted(path string) error {
	return fmt.Errorf("%s is not trusted, so nothing was created", printable(path))
}

// confirm asks a question on the terminal. Anything but y or yes means no, also the end
// of the input.
func (a *app) confirm(ctx context.Context, text string) (bool, error) {
	answer, err := a.answer(ctx, text)
	return isYes(answer), err
}

func isYes(answer string) bool { return answer == "y" || answer == "yes" }

// answer asks a question on the terminal and returns the line that is typed then, in lower
// case. What was typed before the question is no answer to it.
func (a *app) answer(ctx context.Context, text string) (string, error) {
	if t := a.terminal(); t != nil {
		t.forget()
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", text)
	line := make(chan string, 1)
	var typed []byte
	stop, err := readInput(a.stdin, func(piece []byte, err error) bool {
		typed = append(typed, piece...)
		if i := slices.Index(typed, '\n'); i >= 0 || err != nil {
			first, _ := bufio.NewReader(strings.NewReader(string(typed))).ReadString('\n')
			line <- first
			return false
		}
		return true
	})
	if err != nil {
		return "", err
	}
	defer stop()
	select {
	case answer := <-line:
		if !strings.HasSuffix(answer, "\n") {
			fmt.Fprintln(a.stderr)
		}
		return strings.ToLower(strings.TrimSpace(answer)), nil
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return "", ctx.Err() // the caller asks for the cause
	}
}

// errOldDaemon means the daemon is too old to report what files request.
var errOldDaemon = errors.New("this agboxd is older than this program and cannot report what the file requests of this machine: restart it with `agbox daemon stop` and `agbox daemon start`")

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
func requestScreen(q trustQuestion, before *trustAnswer, v extent) (text string, whole bool) {
	var change trustChange
	var legend, since, gone, diff []string
	if before != nil {
		change = q.since(before)
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
func dangersFirst(requests, fresh []hostRequest) []hostRequest {
	rank := func(r hostRequest) (rank int) {
		if !r.Dangerous {
			rank += 2
		}
		if !slices.Contains(fresh, r) {
			rank++
		}
		return rank
	}
	return slices.SortedStableFunc(slices.Values(requests), func(x, y hostRequest) int { return cmp.Compare(rank(x), rank(y)) })
}

// dangerous counts dangerous requests.
func dangerous(requests []hostRequest) (n int) {
	for _, r := range requests {
		if r.Dangerous {
			n++
		}
	}
	return n
}

// requestLines are the lines of requests.
func requestLines(requests, fresh []hostRequest, v extent) []string {
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
func changedLines(change trustChange) []string {
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
