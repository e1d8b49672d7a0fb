package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/cmd/agbox/view"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ago formats how long ago t was, in the largest unit that fits.
func ago(now, t time.Time) string {
	d := now.Sub(t)
	for _, unit := range []struct {
		name string
		len  time.Duration
	}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}} {
		if n := int(d / unit.len); n == 1 {
			return "1 " + unit.name + " ago"
		} else if n > 1 {
			return fmt.Sprintf("%d %ss ago", n, unit.name)
		}
	}
	return "just now"
}

// since is ago for a time that may be missing.
func (a *app) since(t *timestamppb.Timestamp) string { return a.sinceCell(t).Text }

// stamp formats a time in the local time zone, with milliseconds.
func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Local().Format("2006-01-02T15:04:05.000Z07:00")
}

// orDash shows an empty cell as "-".
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// printable makes characters visible that could control the terminal: text may come from a
// sandbox or a request.
func printable(s string) string { return view.Printable(s) }

// printableLines is like printable, but keeps line breaks and tabs.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = printable(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// cut shortens s to at most n columns of the terminal.
func cut(s string, n int) string { return view.Cut(s, n) }

// shellWords quotes a command for the shell.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		plain := func(r rune) bool {
			return !(unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./=:,+@%", r))
		}
		if w != "" && strings.IndexFunc(w, plain) < 0 {
			quoted[i] = w
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(printable(w), "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// sandboxState is the state in a word, with a remark if it is recovering or degraded, or
// if the daemon stopped it because of what something in it did.
func sandboxState(h *agboxv1.SandboxHandle) string {
	word := strings.ToLower(strings.TrimPrefix(h.GetState().String(), "SANDBOX_STATE_"))
	switch {
	case h.GetRestarting():
		return word + " (restarting)"
	case h.GetRecovering():
		return word + " (recovering)"
	case h.GetDegraded():
		return word + " (degraded)"
	case h.GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED && h.GetErrorCode() != "": // by the daemon
		return word + " (" + strings.ToLower(strings.ReplaceAll(h.GetErrorCode(), "_", " ")) + ")"
	}
	return word
}

func execState(e *agboxv1.ExecStatus) string {
	return strings.ToLower(strings.TrimPrefix(e.GetState().String(), "EXEC_STATE_"))
}

// assignments reads the KEY=VALUE pairs of a repeatable flag.
func assignments(flag string, pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("--%s %s is not valid: write KEY=VALUE.", flag, pair)
		}
		out[key] = value
	}
	return out, nil
}

// environment is like assignments, but KEY alone takes the value from agbox's own
// environment. A variable that is not set there is omitted.
func (a *app) environment(flag string, pairs []string) (map[string]string, error) {
	given := make([]string, 0, len(pairs))
	for _, pair := range pairs {
		if !strings.Contains(pair, "=") && pair != "" {
			value, ok := a.lookupEnv(pair)
			if !ok {
				continue
			}
			pair += "=" + value
		}
		given = append(given, pair)
	}
	return assignments(flag, given)
}

// environmentWithSecrets returns the variables of --env and --secret-env, and the names of
// the latter.
func (a *app) environmentWithSecrets(plain, secret []string) (envs map[string]string, marked []string, err error) {
	if envs, err = a.environment("env", plain); err != nil {
		return nil, nil, err
	}
	hidden, err := a.environment("secret-env", secret)
	if err != nil || hidden == nil {
		return envs, nil, err
	}
	if envs == nil {
		envs = make(map[string]string, len(hidden))
	}
	maps.Copy(envs, hidden)
	return envs, slices.Sorted(maps.Keys(hidden)), nil
}
