package screen

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// shells are the shells that agbox has completions for: how each is started without the user's
// settings, and what a user writes into these.
var shells = map[string]struct{ start, settings string }{
	"bash": {"bash --noprofile --norc", ". /usr/share/bash-completion/bash_completion; . <(agbox completion bash)"},
	"zsh":  {"zsh -f", "autoload -U compinit; compinit -D -u; . <(agbox completion zsh)"},
	"fish": {"fish --no-config", "agbox completion fish | source"},
}

// TestShellsComplete types on a terminal, so the shell does what it does for a user. The X after
// the Tab shows what was completed, and not only suggested. Names of sandboxes are tested
// elsewhere: a completion waits for the daemon only for a moment.
func TestShellsComplete(t *testing.T) {
	m := newTmux(t)
	for shell, how := range shells {
		t.Run(shell, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(shell); err != nil {
				t.Fatalf("%v: run 'make setup' in the repository", err)
			}
			m.tell(t, "new-session", "-d", "-s", shell, "-x", "200", "-y", "60", how.start)
			shown := func() string { return m.tell(t, "capture-pane", "-p", "-J", "-t", "="+shell+":") }
			m.keys(t, shell, how.settings+`; printf 'now %s\n' ready`, "Enter")
			harness.Eventually(t, shell+" is ready", func() bool { return strings.Contains(shown(), "now ready") })
			for typed, want := range map[string]string{
				"agbox rena":              "agbox rename X",
				"agbox daemon upg":        "agbox daemon upgrade X",
				"agbox ls --no-tr":        "agbox ls --no-trunc X",
				"agbox kill --signal WIN": "agbox kill --signal WINCH X",
			} {
				m.keys(t, shell, typed, "Tab")
				m.keys(t, shell, "X")
				harness.Eventually(t, shell+" completes "+typed, func() bool { return strings.Contains(shown(), want) })
				m.keys(t, shell, " ", "C-u")
			}
		})
	}
}

// keys types a text, and then keys by their names.
func (m *tmux) keys(t *testing.T, session, text string, names ...string) {
	t.Helper()
	to := []string{"send-keys", "-t", "=" + session + ":"}
	m.tell(t, append(slices.Clone(to), "-l", text)...)
	if len(names) > 0 {
		m.tell(t, append(to, names...)...)
	}
}
