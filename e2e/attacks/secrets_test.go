package attacks

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// secretValues are values of secret variables, in the places where a user can give them.
var secretValues = map[string]string{
	"a variable of the sandbox": "canary-aa-71f0c2",
	"a marked one":              "canary-bb-0d93be",
	"one of a service":          "canary-cc-5518ae",
	"one of a command":          "canary-dd-e2b7c4",
	"a marked one of a command": "canary-ee-9f6a10",
}

// wantNoSecret requires that a text has none of the values.
func wantNoSecret(t *testing.T, where string, text []byte) {
	t.Helper()
	for what, value := range secretValues {
		if bytes.Contains(text, []byte(value)) {
			t.Errorf("%s: %s can be read there", where, what)
		}
	}
}

// searchInstall searches all files of the install, and what its commands show.
func searchInstall(t *testing.T, in *harness.Install, when string, commands ...[]string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(in.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		files++
		wantNoSecret(t, when+": "+path, raw)
		return err
	})
	if err != nil || files < 5 {
		t.Fatalf("%d files were searched, %v", files, err)
	}
	for _, args := range commands {
		said := in.Agbox(t, args...)
		if said.Code != 0 || said.Stdout == "" {
			t.Errorf("%s: agbox %s says %+v", when, strings.Join(args, " "), said)
		}
		wantNoSecret(t, when+": agbox "+strings.Join(args, " "), []byte(said.Stdout+said.Stderr))
	}
}

// has is a script that succeeds if variables have values, without naming the values.
func has(pairs ...string) string {
	var script []string
	for i := 0; i < len(pairs); i += 2 {
		sum := sha256.Sum256([]byte(secretValues[pairs[i+1]]))
		script = append(script, `[ "$(printf %s "$`+pairs[i]+`" | sha256sum | cut -c1-64)" = `+hex.EncodeToString(sum[:])+` ]`)
	}
	return strings.Join(script, " && ")
}

func TestSecretsAreReadNowhereAndGoWithTheSandbox(t *testing.T) {
	Row(t, 17, "values of secret variables are searched in files and answers")
	in := harness.New(t)
	service := "{name: side, image: '" + harness.ImageBusybox + "', command: [sh, -c, 'trap exit TERM; sleep infinity & wait'], envs: {DB_PASSWORD: " + secretValues["one of a service"] + "}}"
	box := in.Create(t, "box", harness.ImageBusybox, "--env", "API_TOKEN="+secretValues["a variable of the sandbox"],
		"--secret-env", "DB_URL="+secretValues["a marked one"], "--service", service)
	run := in.Must(t, "exec", "-d", "--env", "NPM_TOKEN="+secretValues["one of a command"], "--secret-env", "URL="+secretValues["a marked one of a command"],
		box, "--", "sh", "-c", has("NPM_TOKEN", "one of a command", "URL", "a marked one of a command")+"; echo $?; echo $NPM_TOKEN $URL $API_TOKEN >&2; printf $DB_URL; exec sleep 1000")
	harness.Eventually(t, "the command has its variables", func() bool {
		said := in.Agbox(t, "logs", run)
		return said.Stdout == "0\n***" && said.Stderr == "*** *** ***\n"
	})
	in.Must(t, "exec", box, "--", "sh", "-c", has("API_TOKEN", "a variable of the sandbox", "DB_URL", "a marked one"))

	living := [][]string{
		{"inspect", box}, {"inspect", "-o", "json", box}, {"inspect", run}, {"inspect", "-o", "json", run}, {"ps", "-a", "-o", "json", box}, {"ps", box},
		{"ls", "--deleted", "-o", "json"}, {"events", "-o", "json", box}, {"doctor", "-o", "json"},
	}
	searchInstall(t, in, "while the sandbox lives", living...)
	in.KillDaemon(t)
	in.Must(t, "exec", box, "--", "true")
	searchInstall(t, in, "after a crash of the daemon", living...)
	in.Must(t, "stop", box)
	in.Must(t, "start", box)
	in.Must(t, "exec", box, "--", "sh", "-c", has("API_TOKEN", "a variable of the sandbox", "DB_URL", "a marked one"))

	keys, err := os.ReadDir(filepath.Join(in.Home, "data", "secret-keys"))
	if err != nil || !slices.ContainsFunc(keys, func(e fs.DirEntry) bool { return e.Name() == box }) {
		t.Fatalf("the keys are %v, %v", keys, err)
	}
	in.Must(t, "rm", "--wait", box)
	if keys, err := os.ReadDir(filepath.Join(in.Home, "data", "secret-keys")); err != nil || len(keys) > 0 {
		t.Errorf("after rm there are keys %v, %v", keys, err)
	}
	searchInstall(t, in, "after rm", []string{"inspect", "-o", "json", box}, []string{"ls", "--deleted", "-o", "json"}, []string{"ps", "-a", "-o", "json", box})
}

func TestOutputHasSecretValuesOnlyOnRequest(t *testing.T) {
	Row(t, 17, "a command prints a secret before and after a kill of the daemon, and with --show-secrets")
	in := harness.New(t)
	value := secretValues["a variable of the sandbox"]
	box := in.Create(t, "box", harness.ImageBusybox, "--env", "API_TOKEN="+value, "--", "sh", "-c", "echo main $API_TOKEN; exec sleep infinity")
	run := in.Must(t, "exec", "-d", box, "--", "sh", "-c", "echo $API_TOKEN; until [ -e /tmp/go ]; do sleep 0.1; done; echo $API_TOKEN")
	in.KillDaemon(t)
	in.Must(t, "exec", box, "--", "touch", "/tmp/go")
	in.Must(t, "wait", run)
	if said := in.Must(t, "logs", run); said != "***\n***" {
		t.Errorf("the output is %q", said)
	}
	harness.Eventually(t, "the sandbox's own command prints", func() bool { return in.Must(t, "logs", "main-"+box) == "main ***" })
	searchInstall(t, in, "after the commands")
	// What goes to a file or a pipe is a copy.
	if said := in.Must(t, "exec", box, "--", "sh", "-c", "echo $API_TOKEN"); said != value {
		t.Errorf("a pipe gets %q", said)
	}
	// On a terminal it depends on where stdout goes, not on the messages.
	out := filepath.Join(in.Home, "out")
	for line, want := range map[string][2]string{
		"exec " + box + " -- env | grep API_TOKEN >" + out:                                   {value, ""},
		"exec " + box + " -- sh -c 'echo x; echo $API_TOKEN' 2>/dev/null; echo seen >" + out: {"seen", "***"},
	} {
		cmd := in.Command(harness.Bounded(t), "agbox")
		shell := exec.CommandContext(harness.Bounded(t), "script", "-qec", cmd.Path+" "+line, "/dev/null")
		shell.Env, shell.Dir = cmd.Env, in.Home
		screen, err := shell.CombinedOutput()
		file, failed := os.ReadFile(out)
		if err != nil || failed != nil || !strings.Contains(string(file), want[0]) || !strings.Contains(string(screen), want[1]) || strings.Contains(string(screen), value) {
			t.Errorf("%s: %v, %v; the file has %q, the screen %q", line, err, failed, file, screen)
		}
	}
	run = in.Must(t, "exec", "-d", "--show-secrets", box, "--", "sh", "-c", "echo $API_TOKEN")
	in.Must(t, "wait", run)
	if said := in.Must(t, "logs", run); said != value {
		t.Errorf("with --show-secrets the output is %q", said)
	}
}

func TestASandboxOutlivesAKeyThatOthersCanRead(t *testing.T) {
	Row(t, 17, "the key of a sandbox is made readable for others, or goes")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageBusybox, "--secret-env", "DB_URL="+secretValues["a marked one"])
	key := filepath.Join(in.Home, "data", "secret-keys", box)
	for _, c := range []struct {
		says  string
		spoil func() error
	}{
		{"others may use", func() error { return os.Chmod(key, 0o644) }},
		{"there is no key", func() error { return os.Remove(key) }},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		refused := in.Agbox(t, "exec", "--secret-env", "URL=x", box, "--", "true").Want(t, 125)
		if !strings.Contains(refused.Stderr, "cannot be decrypted") || !strings.Contains(refused.Stderr, c.says) {
			t.Errorf("a command with a secret is refused with %q", refused.Stderr)
		}
		if said := in.Agbox(t, "doctor"); !strings.Contains(said.Stdout, "cannot be decrypted") {
			t.Errorf("doctor says %+v", said)
		}
		in.KillDaemon(t)
		in.Must(t, "stop", box)
		in.Must(t, "start", box)
		in.Must(t, "exec", box, "--", "sh", "-c", has("DB_URL", "a marked one"))
	}
	in.Must(t, "rm", "--wait", box)
}

func TestAPromptOfStandardInputIsInNoListOfProcesses(t *testing.T) {
	t.Parallel()
	Row(t, 129, "agbox claude -- -p, with a prompt that is not a terminal's")
	image := imagesOf(t).build(container.Config{}, map[string]string{"bin/claude": "#!/bin/sh\nread prompt\necho \"asked: $prompt\"\nread more\n"})
	in := harness.New(t)
	prompt := "prompt-of-" + ids.New()
	cmd := in.Command(harness.Bounded(t), "agbox", "claude", "--rm", "--", "-p")
	cmd.Dir, cmd.Env = write(t, in, "project", map[string]string{"a": "1\n"}), append(cmd.Env, "AGBOX_CLAUDE_IMAGE="+image, "ANTHROPIC_API_KEY=0123456789-0123456789")
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(input, prompt+"\n")
	if said, _ := bufio.NewReader(output).ReadString('\n'); said != "asked: "+prompt+"\n" {
		t.Errorf("the agent says %q", said)
	}
	seen := 0
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range lines {
		line, _ := os.ReadFile(file) // it may have ended
		if strings.Contains(string(line), "claude\x00") && strings.Contains(string(line), "-p\x00") {
			seen++
		}
		if strings.Contains(string(line), prompt) {
			t.Errorf("%s has the prompt: %q", file, line)
		}
	}
	if seen < 2 {
		t.Errorf("%d processes of agbox and the agent are in the list", seen)
	}
	_ = input.Close()
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 { // the second read ends
		t.Errorf("it ends with %v", err)
	}
}
