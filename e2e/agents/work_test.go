package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestEveryIncarnationGetsTheWorkOfTheSpawn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := project(t, "image: "+harness.ImageUser+`
agent:
  command: [sh, -c, 'cat "$AGBOX_WORK"; until [ -e /tmp/go ]; do sleep 0.05; done; [ "$AGBOX_INCARNATION" = 2 ]']
  work: task.md
  retry: {delays: [0s]}
`)
	task := filepath.Join(dir, "task.md")
	write := func(text string) {
		if err := os.WriteFile(task, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	in.Must(t, "create", "demo", "-f", filepath.Join(dir, "agbox.yaml"))
	write(strings.Repeat("x", 64<<10-1) + "\n")
	id := in.Must(t, "agent", "spawn", "--in", "demo")
	running(t, in, id, 1)
	if err := os.Remove(task); err != nil {
		t.Fatal(err)
	}
	in.KillDaemon(t)
	in.Must(t, "exec", "demo", "touch", "/tmp/go")
	await(t, in, id, "COMPLETED")
	work := strings.Repeat("x", 64<<10-1)
	harness.WantSame(t, "the work of both incarnations", in.Must(t, "agent", "logs", id), work+"\n"+work)
	if left := in.Must(t, "exec", "demo", "ls", "/.agbox/run/work"); left != "" {
		t.Errorf("the sandbox still has %s", left)
	}

	for name, want := range map[string]string{
		"none":   task + " does not exist on this machine",
		"large":  "is larger than the 64 KiB that the work of an agent may have",
		"folder": "is no file, and the work of an agent is one",
		"key":    "Copying /etc/shadow is refused",
	} {
		from := task
		switch name {
		case "large":
			from = filepath.Join(dir, "large")
			if err := os.WriteFile(from, make([]byte, 64<<10+1), 0o600); err != nil {
				t.Fatal(err)
			}
		case "folder":
			from = dir
		case "key":
			from = "/etc/shadow"
		}
		if r := in.Agbox(t, "agent", "spawn", "--in", "demo", "--work", from, "--", "true").Want(t, 2); !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: %s", name, r.Stderr)
		}
	}
	if r := in.Agbox(t, "agent", "spawn", "-f", filepath.Join(dir, "agbox.yaml")).Want(t, 2); !strings.Contains(r.Stderr, "agbox.yaml:4:3: agent.work: ") {
		t.Errorf("a file without its work: %s", r.Stderr)
	}
}

// TestASpawnWithWorkBehindALinkIsRepeatable: what a file of the folder names is stored
// without symbolic links, and a client repeats a request whose answer was lost.
func TestASpawnWithWorkBehindALinkIsRepeatable(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	dir := project(t, "image: "+harness.ImageBusybox+"\nagent: {command: [sh, -c, 'cat \"$AGBOX_WORK\"'], work: link.md}\n")
	if err := os.WriteFile(filepath.Join(dir, "task.md"), []byte("fix it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("task.md", filepath.Join(dir, "link.md")); err != nil {
		t.Fatal(err)
	}
	spawn := []string{"agent", "spawn", "--id", "a-1", "-f", filepath.Join(dir, "agbox.yaml")}
	in.Must(t, spawn...)
	await(t, in, "a-1", "COMPLETED")
	harness.WantSame(t, "output", in.Must(t, "agent", "logs", "a-1"), "fix it")
	if again := in.Must(t, spawn...); again != "a-1" {
		t.Errorf("the repeated request made %s", again)
	}
	in.Must(t, "agent", "rm", "a-1")
}
