package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/version"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	time.Local = time.UTC
	version.Version = "v-test"
	goleak.VerifyTestMain(m)
}

// cli runs the program inside the test.
type cli struct {
	*app
	t       *testing.T
	out     syncBuffer
	errs    syncBuffer
	signals chan os.Signal
	// raised are the signals by which agbox has ended itself.
	raised []syscall.Signal
}

// syncBuffer can be read while the program writes.
type syncBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
	// wrote, if set, is called after each write.
	wrote func()
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	n, err := b.buf.Write(p)
	b.mu.Unlock()
	if b.wrote != nil {
		b.wrote()
	}
	return n, err
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newCLI(t *testing.T, socket string) *cli {
	c := &cli{t: t, signals: make(chan os.Signal, 8)}
	c.app = &app{
		stdout:    &c.out,
		stderr:    &c.errs,
		width:     func() int { return 0 },
		now:       func() time.Time { return theTime.Add(3 * time.Minute) },
		lookupEnv: func(key string) (string, bool) { return "from-" + key, key != "UNSET" },
		replace:   func(string, []string, []string) error { return nil },
		signals:   func(...os.Signal) (<-chan os.Signal, func()) { return c.signals, func() {} },
		restore:   func(...os.Signal) {},
		goesOn:    new(background),
		raise:     func(sig syscall.Signal) { c.raised = append(c.raised, sig) },
		socket:    socket,
	}
	return c
}

// agbox runs one command line and returns its exit code and output.
func agbox(t *testing.T, socket string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	c := newCLI(t, socket)
	code = c.run(t.Context(), withSocket(socket, args))
	return code, c.out.String(), c.errs.String()
}

func withSocket(socket string, args []string) []string {
	if socket == "" {
		return args
	}
	return append([]string{"--socket", socket}, args...)
}

func (c *cli) exec(ctx context.Context, args ...string) int {
	return c.run(ctx, withSocket(c.socket, args))
}

// golden compares text with a file under testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run the test with -update to write it", err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update if that is meant); got:\n%s\nwant:\n%s", path, got, want)
	}
}

var randomID = regexp.MustCompile(`\b[0-9a-hjkmnp-tv-z]{12}\b`)

// stable replaces random ids.
func stable(text string) string { return randomID.ReplaceAllString(text, "IDIDIDIDIDID") }

func TestHelpReads(t *testing.T) {
	for name, args := range map[string][]string{
		"help":            {"--help"},
		"help-exit-codes": {"help", "exit-codes"},
		"help-create":     {"create", "--help"},
		"help-exec":       {"help", "exec"},
		"help-attach":     {"attach", "--help"},
		"help-shell":      {"shell", "--help"},
		"help-cp":         {"cp", "--help"},
		"help-ls":         {"ls", "--help"},
		"help-kill":       {"kill", "-h"},
		"help-logs":       {"logs", "-h"},
		"help-daemon":     {"daemon"},
	} {
		code, out, errs := agbox(t, "", args...)
		if code != 0 || errs != "" {
			t.Errorf("%v: code %d, stderr %q", args, code, errs)
		}
		golden(t, name, out)
	}
}

func TestTablesRead(t *testing.T) {
	_, socket := serveScripted(t)
	for _, args := range [][]string{
		{"create", "--id", "first1", "demo", "--image", "good", "--label", "team=red"},
		{"create", "--id", "second2", "--image", "a/very/long/registry/name/that/goes/on/and/on/image:latest"},
		{"exec", "-d", "--name", "job", "first1", "wait", "a b", "it's", "\x1b[31m"},
		{"exec", "first1", "exit", "0"},
		{"exec", "second2", "exit", "0"},
	} {
		if code, _, errs := agbox(t, socket, args...); code != 0 {
			t.Fatalf("%v: code %d, %s", args, code, errs)
		}
	}
	for name, args := range map[string][]string{
		"ls":          {"ls"},
		"ls-json":     {"ls", "-o", "json", "--label", "team=red"},
		"ls-quiet":    {"ls", "-q"},
		"ps":          {"ps"},
		"ps-all":      {"ps", "-a"},
		"ps-all-one":  {"ps", "-a", "demo"},
		"inspect":     {"inspect", "demo", "job"},
		"events":      {"events"},
		"events-one":  {"events", "demo", "--since-seq", "2"},
		"events-json": {"events", "demo", "--since-seq", "4", "-o", "json"},
		"logs-json":   {"logs", "job", "-o", "json"},
		"version":     {"version"},
	} {
		code, out, errs := agbox(t, socket, args...)
		if code != 0 || errs != "" {
			t.Errorf("%v: code %d, stderr %q", args, code, errs)
		}
		golden(t, name, stable(out))
	}
}

func TestCommandsAreListedNewestFirst(t *testing.T) {
	d, socket := serveScripted(t)
	agbox(t, socket, "create", "--id", "box1", "--image", "good")
	for i, name := range []string{"third", "first", "second"} {
		agbox(t, socket, "exec", "-d", "--name", name, "box1", "wait")
		d.execs[i].ExecId = name
		d.execs[i].StartedAt = timestamppb.New(theTime.Add(time.Duration(2+i) % 3 * time.Second))
	}
	for _, args := range [][]string{{"ps", "-q"}, {"ps", "-a", "-q"}} {
		if _, out, _ := agbox(t, socket, args...); out != "third\nsecond\nfirst\n" {
			t.Errorf("%v: %q", args, out)
		}
	}
}

func TestDaemonStatusReads(t *testing.T) {
	d, socket := serveScripted(t)
	d.pid = 4711
	for name, args := range map[string][]string{
		"daemon-status":      {"daemon", "status"},
		"daemon-status-json": {"daemon", "status", "-o", "json"},
	} {
		code, out, errs := agbox(t, socket, args...)
		if code != 0 || errs != "" {
			t.Errorf("%v: code %d, stderr %q", args, code, errs)
		}
		golden(t, name, strings.ReplaceAll(out, socket, "/run/agboxd.sock"))
	}
}

func TestAnEmptyListIsAnEmptyJSONArray(t *testing.T) {
	_, socket := serveScripted(t)
	if _, out, _ := agbox(t, socket, "ls", "-o", "json"); out != "[]\n" {
		t.Errorf("got %q", out)
	}
}

func TestCompletionOffersNamesAndStartsNoDaemon(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	agbox(t, socket, "exec", "-d", "--name", "job", "demo", "wait")
	for what, want := range map[string]string{
		"exec ": "demo\tready, good", "logs ": "job\twait", "rm de": "demo\tready, good", "rm x": "",
		"run ": "good:1\t1 MB", "run g": "good:1\t1 MB", "run x": "",
	} {
		// The flag follows the word, although a shell puts it before the word.
		words := strings.SplitN(what, " ", 2)
		code, out, _ := agbox(t, "", "__complete", "--socket", socket, words[0], words[1])
		first, _, _ := strings.Cut(out, "\n")
		if code != 0 || (want != "" && first != want) || (want == "" && !strings.HasPrefix(first, ":")) {
			t.Errorf("%q: code %d, %q", what, code, out)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "agboxd"), []byte("#!/bin/sh\n: > "+dir+"/started\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv("AGBOX_HOME", dir)
	if code, out, _ := agbox(t, "", "__complete", "exec", ""); code != 0 || !strings.HasPrefix(out, ":") {
		t.Errorf("without a daemon: code %d, %q", code, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "started")); err == nil {
		t.Error("a completion started a daemon")
	}
}

// failing is an output whose reader has gone.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// fullDisk is an output on a full disk.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestAMessageOfASandboxDoesNotSteerTheTerminal(t *testing.T) {
	var errs bytes.Buffer
	a := &app{stderr: &errs}
	a.say("%s", "two\n\tlines, \x1b]0;title\a and \x1b[2J\r\u009b1m é.")
	if want := "agbox: two\n\tlines, \\x1b]0;title\\a and \\x1b[2J\\r\\u009b1m é.\n"; errs.String() != want {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
}

func TestAWordThatIsNoCommandIsAMistakeInEveryGroup(t *testing.T) {
	for words, want := range map[string]string{
		"crate":           "agbox: agbox has no command \"crate\". Did you mean create?\n",
		"demo exec":       "agbox: agbox has no command \"demo\"",
		"config vlidate":  "agbox: agbox config has no command \"vlidate\". Did you mean validate?\n",
		"image bild":      "agbox: agbox image has no command \"bild\". Did you mean build?\n",
		"daemon restart":  "agbox: agbox daemon has no command \"restart\"",
		"tools show them": "agbox: agbox tools has no command \"show\"",
	} {
		code, out, errs := agbox(t, "", strings.Fields(words)...)
		if code != codeUsage || out != "" || !strings.HasPrefix(errs, want) || !strings.HasSuffix(errs, "--help`.\n") {
			t.Errorf("%s: code %d, %q, %q", words, code, out, errs)
		}
	}
	for _, group := range []string{"", "config", "image", "daemon", "tools"} {
		if code, out, errs := agbox(t, "", strings.Fields(group)...); code != 0 || !strings.Contains(out, "Usage:\n  agbox") || errs != "" {
			t.Errorf("%q alone: code %d, %q", group, code, errs)
		}
	}
}

func TestAValueThatAFlagCannotTakeIsRefusedInWords(t *testing.T) {
	for words, want := range map[string]string{
		"create --pids-limit -1":          "write a whole number, 0 or more.",
		"create --pids-limit 99999999999": "the number is too large.",
		"logs x --tail y":                 `--tail "y" is not valid: give a number of lines, or all.`,
		"stats --no-stream=2":             "write true or false.",
		"create --privileged=maybe":       "write true or false.",
	} {
		if code, _, errs := agbox(t, "", strings.Fields(words)...); code != codeUsage || !strings.Contains(errs, want) || strings.Contains(errs, "strconv") {
			t.Errorf("%s: code %d, %q", words, code, errs)
		}
	}
}

func TestValuesOfFlagsAreCompleted(t *testing.T) {
	_, socket := serveScripted(t)
	for words, want := range map[string]string{
		"create --revival": "revive\n", "create --pull": "if_missing\n", "create --tool": "git\n", "create --image": "good:1\t",
		"config show --image": "good:1\t", "kill -s": "TERM\n", "exec -u": ":4\n", "create --cpus": ":4\n",
		"create -f": ":0\n", "create --mount": ":0\n", "--socket": ":0\n",
	} {
		args := append([]string{"__complete", "--socket", socket}, append(strings.Fields(words), "")...)
		if code, out, _ := agbox(t, "", args...); code != 0 || !strings.Contains(out, want) || !strings.HasPrefix(want, ":") && !strings.Contains(out, ":4\n") {
			t.Errorf("%s: code %d, %q", words, code, out)
		}
	}
}

func TestAnEmptyNameIsAMistakeInEveryCommand(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	var checked int
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(append(slices.Clone(path), sub.Name()), sub)
		}
		if cmd.HasSubCommands() || !cmd.Runnable() || cmd.Args(cmd, []string{"x"}) != nil && cmd.Args(cmd, []string{"x", "y"}) != nil {
			return
		}
		for _, args := range [][]string{{""}, {"", "y"}} {
			want := codeUsage
			if cmd.Annotations[ownExitCodes] != "" {
				want = codeExecAgbox
			}
			code, out, errs := agbox(t, socket, append(append(slices.Clone(path), "--no-autostart"), args...)...)
			if checked++; code != want || out != "" || !strings.Contains(errs, "is empty") {
				t.Errorf("%v %q: code %d, %q, %q", path, args, code, out, errs)
			}
		}
	}
	walk(nil, newCLI(t, socket).rootCommand())
	if checked < 80 {
		t.Errorf("only %d command lines were checked", checked)
	}
}

func TestAnEmptyTextIsNoEmptyName(t *testing.T) {
	_, socket := serveScripted(t)
	agbox(t, socket, "create", "demo", "--image", "good")
	if code, out, errs := agbox(t, socket, "exec", "demo", "say", ""); code != 0 || out != "\n" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}

// What a command takes does not hang on the words of its help.
func TestTheHelpOfACommandDoesNotSayWhatItTakes(t *testing.T) {
	for _, marked := range []map[string]string{nil, {endsInText: "yes"}} {
		cmd := &cobra.Command{Use: "say NAME TEXT", Annotations: marked}
		checkArguments(cmd)
		if err := cmd.Args(cmd, []string{"demo", ""}); (err == nil) != (marked != nil) {
			t.Errorf("with %v: %v", marked, err)
		}
	}
}

func TestAnEmptyNameInAFlagIsAMistake(t *testing.T) {
	_, socket := serveScripted(t)
	for _, args := range [][]string{{"down", "--rm", "-f", "--name", ""}, {"logs", "--sandbox", ""}} {
		if code, _, errs := agbox(t, socket, args...); code != 2 || !strings.Contains(errs, "is empty. If it is a variable of a script, that is not set.") {
			t.Errorf("%v: code %d, %q", args, code, errs)
		}
	}
}
