package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// systemCertificates is the file with all authorities that Debian trusts.
const systemCertificates = "/etc/ssl/certs/ca-certificates.crt"

// javascript copies the client in a folder, with its program, to dir and installs what it needs.
func javascript(t *testing.T, from, program, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"package.json", "package-lock.json", "proto/buf/validate/validate.proto"} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), content, 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "follow.js"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	// Node.js has its own list of authorities. A network's own authority is known only to
	// the system.
	if _, err := os.Stat(systemCertificates); err == nil && os.Getenv("NODE_EXTRA_CA_CERTS") == "" {
		cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+systemCertificates)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v (run 'make setup' where npm is missing)\n%s", err, out)
	}
}

// toldAtEnd is what the client in JavaScript tells at the end.
type toldAtEnd struct {
	State    string `json:"state"`
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout_bytes"`
	Stderr   string `json:"stderr_bytes"`
	Notice   string `json:"notice"`
	Opened   int    `json:"opened"`
}

// An editor's extension uses another gRPC library than ours, and must get the same.
func TestAJavaScriptClientFollowsALogAcrossKillsOfTheDaemon(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, ".build", "javascript")
	javascript(t, filepath.Join(root, "contrib", "javascript"), inRepository(t, "scripts/snippet.sh", "docs/ide.md", "follow"), dir)
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", writer)

	got := filepath.Join(t.TempDir(), "stdout")
	file, err := os.Create(got)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	told := harness.NewOutput()
	follower := exec.CommandContext(t.Context(), "node", filepath.Join(dir, "follow.js"),
		in.Socket(), job, filepath.Join(dir, "proto")+":"+filepath.Join(root, "proto"))
	follower.Stdout, follower.Stderr = file, told
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- follower.Wait() }()
	harness.Eventually(t, "node follows", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("node ended early: %v\n%s", err, told)
		default:
		}
		got, err := os.Stat(got)
		return err == nil && got.Size() > 0
	})
	// Our own follower shows how far the command has come.
	progress := in.Start(t, "--no-autostart", "logs", "-f", "--stdout", job)
	for i, line := range []int{20_000, 60_000, 94_000} {
		progress.AwaitOutput(t, fmt.Sprintf("out %d\n", line))
		in.KillDaemon(t)
		if i == 2 {
			openGate(t, gateOf(in, box)) // it ends while no daemon runs
		}
		in.Must(t, "daemon", "start")
	}
	select {
	case err = <-ended:
	case <-harness.Bounded(t).Done():
		err = errors.New("it does not end")
	}
	if err != nil {
		t.Fatalf("node: %v\n%s", err, told)
	}
	stdout, stderr := written()
	wantFileHolds(t, got, stdout, stderr)
	var end toldAtEnd
	if err := json.Unmarshal([]byte(told.String()), &end); err != nil {
		t.Fatalf("%v: %q", err, told.String())
	}
	if end.State != "EXEC_STATE_FINISHED" || end.ExitCode != 37 || end.Notice != "" || end.Opened < 2 ||
		end.Stdout != fmt.Sprint(len(stdout)) || end.Stderr != fmt.Sprint(len(stderr)) {
		t.Errorf("the end was %+v", end)
	}
	progress.Wait(t).Want(t, 0).WantOutput(t, stdout, "")
}

// wantFileHolds splits a file with both outputs by the first word of the lines.
func wantFileHolds(t *testing.T, path, stdout, stderr string) {
	t.Helper()
	both, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	for line := range strings.Lines(string(both)) {
		if strings.HasPrefix(line, "err ") {
			errs.WriteString(line)
		} else {
			out.WriteString(line)
		}
	}
	harness.WantSame(t, "stdout in JavaScript", out.String(), stdout)
	harness.WantSame(t, "stderr in JavaScript", errs.String(), stderr)
}
