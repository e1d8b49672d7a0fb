package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/trust"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxDiff bounds the lines of a diff on the screen. `agbox trust show` prints the whole content.
const maxDiff = 40

// trustStore is where the answers are stored.
func trustStore() (trust.Store, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return trust.Store{}, err
	}
	return trust.Store{Dir: install.Trust()}, nil
}

// question is what a person must agree to before files that came with a folder take
// effect; nil if the files request nothing of the host.
func question(input *client.SpecInput, asked *agboxv1.HostRequests) *trust.Question {
	if len(input.Files) == 0 || len(asked.GetRequests())+len(input.Variables) == 0 {
		return nil
	}
	q := &trust.Question{Path: input.Files[0].Path}
	for _, f := range input.Files {
		q.Files = append(q.Files, trust.NewFile(f.Path, f.Content, f.Secret))
	}
	for _, r := range asked.GetRequests() {
		one := trust.Request{Text: fmt.Sprintf("%-9s %s", r.GetKind(), r.GetText()), Dangerous: r.GetDangerous()}
		if r.GetFile() != "" {
			one.Where = fmt.Sprintf("%s:%d", filepath.Base(r.GetFile()), r.GetLine())
		}
		q.Requests = append(q.Requests, one)
	}
	for _, name := range input.Variables {
		q.Requests = append(q.Requests, trust.Request{Text: fmt.Sprintf("%-9s %s, with its value in your environment", "variable", name)})
	}
	return q
}

// agree makes sure that a person has agreed to what the files request of the host. It
// asks on a terminal, and fails without one.
func (o *specOptions) agree(ctx context.Context, a *app, input *client.SpecInput, asked *agboxv1.HostRequests) error {
	q := question(input, asked)
	if q == nil || asked.GetTrustedByPolicy() {
		return nil
	}
	store, err := trustStore()
	if err != nil {
		return err
	}
	known, before, err := store.Trusted(*q)
	switch {
	case err != nil:
		return err
	case known, o.trust:
		return nil
	case q.Path == "-" || a.terminal() == nil || a.width() == 0:
		a.sayEach(strings.TrimSuffix(requestScreen(*q, before), "\n"))
		return usagef("%s requests the above, and you have not agreed to it. Run `agbox trust review %s` on a terminal, or give --trust.", printable(q.Path), shellWords([]string{q.Path}))
	}
	return a.askForTrust(ctx, store, *q, before)
}

// askForTrust asks the question, and stores the answer if it is yes.
func (a *app) askForTrust(ctx context.Context, store trust.Store, q trust.Question, before *trust.Answer) error {
	fmt.Fprint(a.stderr, "\n", requestScreen(q, before), "\n")
	yes, err := a.confirm(ctx, "Allow this, and remember the answer for this content?")
	switch {
	case err != nil:
		return err
	case !yes:
		return toldError{errNotTrusted(q.Path)}
	}
	return store.Remember(q, a.now())
}

// errNotTrusted means the person answered no.
func errNotTrusted(path string) error {
	return fmt.Errorf("%s is not trusted, so nothing was created", printable(path))
}

// requestScreen is what a person sees before the decision. Control characters from
// files are escaped.
func requestScreen(q trust.Question, before *trust.Answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s requests access to this machine:\n\n", printable(q.Path))
	var change trust.Change
	if before != nil {
		change = q.Since(before)
	}
	width := 0
	for _, r := range q.Requests {
		if r.Where != "" {
			width = max(width, len([]rune(printable(r.Text))))
		}
	}
	danger := false
	for _, r := range q.Requests {
		mark := " "
		if r.Dangerous {
			mark, danger = "!", true
		}
		novelty := " "
		if slices.Contains(change.New, r) {
			novelty = "+"
		}
		line := fmt.Sprintf(" %s%s %-*s  %s", novelty, mark, width, printable(r.Text), printable(r.Where))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for _, r := range change.Gone {
		fmt.Fprintf(&b, " -  %s\n", printable(r.Text))
	}
	if danger {
		b.WriteString("\n ! weakens the protection of this machine, or reaches outside the folder of the file.\n")
	}
	if before != nil {
		fmt.Fprintf(&b, "\nYou agreed to an earlier version on %s. Since then:\n", before.TrustedAt.Local().Format("2006-01-02 15:04"))
		b.WriteString(differences(change, maxDiff))
	}
	return b.String()
}

// differences are the changed lines of all files, at most most of them.
func differences(change trust.Change, most int) string {
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
	var b strings.Builder
	for i, line := range lines {
		if i == most {
			fmt.Fprintf(&b, "  ... and %d more lines\n", len(lines)-most)
			break
		}
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// confirm asks a question on the terminal. Anything but y or yes means no, also the end
// of the input.
func (a *app) confirm(ctx context.Context, text string) (bool, error) {
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
		return false, err
	}
	defer stop()
	select {
	case answer := <-line:
		if !strings.HasSuffix(answer, "\n") {
			fmt.Fprintln(a.stderr)
		}
		switch strings.ToLower(strings.TrimSpace(answer)) {
		case "y", "yes":
			return true, nil
		}
		return false, nil
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return false, context.Cause(ctx)
	}
}

// errOldDaemon means the daemon is too old to report what files request.
var errOldDaemon = errors.New("this agboxd is older than this program and cannot report what the file requests of this machine: restart it with `agbox daemon stop` and `agbox daemon start`")
