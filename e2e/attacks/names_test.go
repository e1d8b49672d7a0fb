package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// hostileNames are names of files that a sandbox can choose.
var hostileNames = []string{"a\nb", "\x1b]0;title\a", "\x1b[2J", "\xff\xfe", "\u202efdp.exe", "\u009b31m", "-rf", " ", "..x", "$(touch x)", strings.Repeat("n", 255)}

// wantNoSteering requires that nothing in a text steers a terminal.
func wantNoSteering(t *testing.T, what, text string) {
	t.Helper()
	if strings.ContainsAny(text, "\x1b\a\u202e\u009b\r") {
		t.Errorf("%s steers the terminal: %q", what, text)
	}
}

func TestNamesOfFilesSteerNothing(t *testing.T) {
	t.Parallel()
	Row(t, 78, "names of files with line breaks, escapes, bytes that are no text, dashes")
	in := harness.New(t)
	in.Create(t, box, harness.ImageBusybox)
	var script strings.Builder
	script.WriteString("mkdir /d && cd /d\n")
	for _, name := range hostileNames {
		fmt.Fprintf(&script, "n=$(printf '")
		for _, b := range []byte(name) {
			fmt.Fprintf(&script, `\%03o`, b)
		}
		script.WriteString("'); mkdir -- \"$n\" && echo x >./\"$n\"/.envrc && mkfifo ./\"$n\"/pipe || exit\n")
	}
	inside(t, in, box, script.String())
	to := filepath.Join(in.Home, "to")
	left := in.Agbox(t, "cp", box+":/d", to).Want(t, 1)
	wantNoSteering(t, "what is left out", left.Stdout+left.Stderr)
	in.Agbox(t, "cp", box+":/d/.", to).Want(t, 1)
	r := in.Agbox(t, "cp", "--yes-executable", box+":/d/.", to).Want(t, 0)
	if !strings.Contains(r.Stderr, "skipped") || !strings.Contains(r.Stderr, ".envrc") {
		t.Errorf("it says neither what was skipped nor what the host would execute: %q", r.Stderr)
	}
	wantNoSteering(t, "cp", r.Stdout+r.Stderr)
	entries, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
		if raw, err := os.ReadFile(filepath.Join(to, e.Name(), ".envrc")); err != nil || string(raw) != "x\n" {
			t.Errorf("%q has %q (%v)", e.Name(), raw, err)
		}
	}
	want := slices.Sorted(slices.Values(hostileNames))
	if !slices.Equal(got, want) {
		t.Errorf("the copy has %q, want %q", got, want)
	}
}

func TestCommandLinesSteerNothing(t *testing.T) {
	t.Parallel()
	Row(t, 70, "command lines, variables and labels with escapes in tables and JSON")
	in := harness.New(t)
	const evil = "\x1b]0;title\a\x1b[2J\u202e\u009b31m\r"
	in.Create(t, box, harness.ImageBusybox, "--label", "a="+evil, "--env", "A="+evil)
	in.Must(t, "exec", "-d", box, "--", "sh", "-c", "exit 3 # "+evil)
	in.Agbox(t, "exec", box, "--", "/no/such"+evil)
	for _, args := range [][]string{
		{"ps", "-a", box}, {"ps", "-a", "-o", "json", box}, {"ls"}, {"ls", "-o", "json"}, {"inspect", box}, {"inspect", "-o", "json", box}, {"events", box}, {"doctor"},
	} {
		r := in.Agbox(t, args...)
		wantNoSteering(t, strings.Join(args, " "), r.Stdout+r.Stderr)
		if args[0] == "ps" && !strings.Contains(r.Stdout, "exit 3") {
			t.Errorf("%v does not show the command: %q", args, r.Stdout)
		}
	}
}
