package screen

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

var update = flag.Bool("update", false, "write the pictures anew")

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := exec.LookPath("tmux"); err != nil {
		fmt.Fprintln(os.Stderr, "screen: tmux is missing: run 'make setup' in the repository")
		return 1
	}
	code := m.Run()
	if err := harness.GoroutinesLeft(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "screen: the tests left goroutines behind:", err)
		return 1
	}
	return code
}

// tmux is a server of tmux whose terminals run agbox.
type tmux struct {
	t    *testing.T
	home string
	// daemon is the socket of the recorded daemon.
	daemon string
}

// rows is the height of the terminals. Every table fits into it.
const rows = 60

// marker is what a terminal shows when its command has ended.
const marker = "~~ ended"

// newTmux starts a recorded daemon and a server of tmux.
func newTmux(t *testing.T) *tmux {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "abtmux") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	m := &tmux{t: t, home: home, daemon: serve(t, home)}
	settings := "set -g status off\nset -g default-terminal screen-256color\nset -g default-shell /bin/sh\n"
	if err := os.WriteFile(filepath.Join(home, "tmux.conf"), []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	agbox, err := filepath.Abs(filepath.Join("..", "..", "bin", "agbox"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(agbox, filepath.Join(home, "agbox")); err != nil {
		t.Fatal(err)
	}
	m.trust()
	m.tell(t, "new-session", "-d", "read line") // the server ends with its last session
	t.Cleanup(func() { _, _ = m.command(context.WithoutCancel(t.Context()), "kill-server").CombinedOutput() })
	return m
}

// trust stores answers about sandbox files. Each has a digest of its path and requests.
func (m *tmux) trust() {
	dir := filepath.Join(m.home, "state", "config", "trust")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		m.t.Fatal(err)
	}
	for path, digest := range map[string]string{
		"/home/ann/shop/agbox.yaml":                              "7f2068b7f49d184de4c2c1a82b2e992020eed2760d96368a73bcfef958f5bc0b",
		"/home/ann/" + strings.Repeat("日本語/", 20) + "agbox.yaml": "cc036ca5983dede43bd67efefecc8114261a96b6643a22c4df5de7ad3368eee8",
	} {
		answer := fmt.Sprintf(`{"path": %q, "requests": [{"text": "mount /"}, {"text": "port 80", "dangerous": true}], "trusted_at": %q, "digest": %q}`,
			path, time.Now().Add(-50*time.Hour).Format(time.RFC3339), digest)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%x.json", sha256.Sum256([]byte(path)))), []byte(answer), 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *tmux) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-f", filepath.Join(m.home, "tmux.conf"), "-S", filepath.Join(m.home, "tmux.sock")}, args...)...)
	cmd.Env = []string{"PATH=" + m.home + ":" + os.Getenv("PATH"), "HOME=" + m.home, "AGBOX_HOME=" + filepath.Join(m.home, "state"), "LC_ALL=C.UTF-8", "TZ=UTC", "TERM=xterm"}
	return cmd
}

// tell gives tmux a command and returns its output.
func (m *tmux) tell(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.command(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// show runs a command of the shell on a terminal that is width columns wide, and returns
// what the terminal then shows. The flags are those of tmux capture-pane.
func (m *tmux) show(t *testing.T, width int, command string, flags ...string) string {
	t.Helper()
	name := strings.NewReplacer("/", "_", ".", "_", ":", "_").Replace(fmt.Sprintf("%s %d %v", t.Name(), width, flags))
	// The terminal stays until its shell has read a line, which nobody types.
	m.tell(t, "new-session", "-d", "-s", name, "-x", fmt.Sprint(width), "-y", fmt.Sprint(rows),
		command+"; printf '"+marker+"\\n'; read line")
	var shown string
	harness.Eventually(t, command+" has ended", func() bool {
		shown = m.tell(t, append([]string{"capture-pane", "-p", "-t", "=" + name + ":"}, flags...)...)
		return strings.Contains(shown, marker)
	})
	m.tell(t, "kill-session", "-t", "="+name)
	shown, _, _ = strings.Cut(shown, marker)
	return shown
}

// golden compares a picture with the one in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run the test with -update to write it", err)
	}
	harness.WantSame(t, path, got, string(want))
}

// tables are all commands that show a table, and one that shows an outline.
var tables = []string{
	"ls", "ps", "ps -a", "image ls", "stats --no-stream", "events", "port web", "inspect long", "doctor", "tools ls 2>/dev/null", "trust ls",
	"agent ls", "agent tree", "agent leases", "agent inbox fixer", "agent checkpoints fixer",
}

func TestTablesFitTheTerminal(t *testing.T) {
	m := newTmux(t)
	for _, table := range tables {
		name, _, _ := strings.Cut(strings.NewReplacer(" --", "-", " -", "-", " ", "-").Replace(table), "-2>")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var picture strings.Builder
			for _, width := range []int{60, 80, 120, 200} {
				command := "agbox --socket " + m.daemon + " " + table
				shown := m.show(t, width, command)
				wantNoWrap(t, width, shown, m.show(t, width, command, "-J"))
				fmt.Fprintf(&picture, "%s\n%s\n", strings.Repeat("=", width), shown)
			}
			golden(t, name, picture.String())
		})
	}
}

// wantNoWrap checks that no line of a table was longer than the terminal: tmux would join
// what it had wrapped.
func wantNoWrap(t *testing.T, width int, shown, joined string) {
	t.Helper()
	if strings.Count(shown, "\n") != strings.Count(joined, "\n") {
		t.Errorf("a line is wider than %d columns:\n%s", width, joined)
	}
}

// TestStatesHaveColours: the states are coloured on a terminal, unless NO_COLOR is set.
func TestStatesHaveColours(t *testing.T) {
	m := newTmux(t)
	command := "agbox --socket " + m.daemon + " ls"
	golden(t, "ls-colours", m.show(t, 120, command, "-e"))
	for _, setting := range []string{"NO_COLOR=1 ", "TERM=dumb "} {
		if shown := m.show(t, 120, setting+command, "-e"); strings.Contains(shown, "\x1b") {
			t.Errorf("with %s:\n%q", setting, shown)
		}
	}
}

// TestWholeTextIsShownOnRequest: --no-trunc, -o wide and a pipe cut nothing.
func TestWholeTextIsShownOnRequest(t *testing.T) {
	m := newTmux(t)
	command := "agbox --socket " + m.daemon + " ls "
	for _, more := range []string{"--no-trunc", "-o wide", "| cat"} {
		shown := strings.ReplaceAll(m.show(t, 80, command+more, "-J"), "\n", "")
		for _, box := range boxes[:2] {
			for _, text := range []string{box.GetSandboxId(), box.GetName(), box.GetImage()} {
				if !strings.Contains(shown, text) {
					t.Errorf("%s lacks %q:\n%s", more, text, shown)
				}
			}
		}
		if has := strings.Contains(shown, "owner=ann,team=red"); has != (more == "-o wide") {
			t.Errorf("%s: labels %v", more, has)
		}
	}
}
