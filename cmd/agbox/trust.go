package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/feature"
	"github.com/agbox/agbox/spec/trust"
)

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
	case !a.canAsk(*q):
		text, _ := requestScreen(*q, before, extent{})
		a.sayEach(strings.TrimSuffix(text, "\n"))
		remedy := "Run `agbox trust review " + shellWords([]string{q.Path}) + "`"
		if slices.ContainsFunc(asked.GetRequests(), func(r *agboxv1.HostRequest) bool { return r.GetFile() == "" }) {
			remedy = "Run this command" // it is not the file alone that asks
		}
		return usagef("%s requests the above, and you have not agreed to it. %s on a terminal, or give --trust.", printable(q.Path), remedy)
	}
	return a.askForTrust(ctx, store, *q, before)
}

// agreeToFetch makes sure that a person agrees to the first request to a registry. What a
// feature asks of the host is known only once it is here, and is asked about then.
func (o *specOptions) agreeToFetch(ctx context.Context, a *app, c *client.Client, read *client.SpecInput, references []string) error {
	if o.trust {
		return nil
	}
	if byPolicy, err := trustedByPolicy(ctx, c, read.Request.GetConfigDir()); byPolicy || err != nil {
		return err
	}
	q := trust.Question{Path: read.Files[0].Path}
	for _, reference := range references {
		q.Requests = append(q.Requests, trust.Request{
			Text: fmt.Sprintf("%-9s %s, which is fetched from its registry first", "feature", reference), Dangerous: feature.Near(reference),
		})
	}
	if !a.canAsk(q) {
		text, _ := requestScreen(q, nil, extent{})
		a.sayEach(strings.TrimSuffix(text, "\n"))
		return usagef("Nothing is fetched for %s without your agreement. Run `agbox trust review %s` on a terminal, or give --trust.", printable(q.Path), shellWords([]string{q.Path}))
	}
	yes, err := a.ask(ctx, q, nil, "Fetch this? What it asks for is shown then.")
	if err == nil && !yes {
		err = toldError{errNotTrusted(q.Path)}
	}
	return err
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
func (a *app) askForTrust(ctx context.Context, store trust.Store, q trust.Question, before *trust.Answer) error {
	yes, err := a.ask(ctx, q, before, "Allow this, and remember the answer for this content?")
	switch {
	case err != nil:
		return err
	case !yes:
		return toldError{errNotTrusted(q.Path)}
	}
	return store.Remember(q, a.now())
}

// canAsk reports whether a person can be asked.
func (a *app) canAsk(q trust.Question) bool {
	return q.Path != "-" && a.terminal() != nil && a.width() != 0
}

// ask shows a question, and reports whether the answer is yes.
func (a *app) ask(ctx context.Context, q trust.Question, before *trust.Answer, ask string) (bool, error) {
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
