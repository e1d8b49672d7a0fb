package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestRmRefusesToLoseWorkAndRunningCommands(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", "b": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.Create(t, "same", harness.ImageUser, "--workspace", dir)
	in.Must(t, "rm", "same") // it has changed nothing
	in.inside(t, "demo", "echo 2 > /workspace/a; rm /workspace/b")
	job := in.Must(t, "exec", "-d", "demo", "--", "sleep", "1000")
	for _, args := range [][]string{{"rm", "demo"}, {"rm", "--all"}} {
		refused(t, in.Agbox(t, args...), 4, "Removing sandbox demo would lose 2 changed files (a, b) and 1 running command (sleep 1000). "+
			"`agbox diff demo` shows the changes, `agbox apply demo` brings them back. `agbox ps demo` lists the commands. `agbox rm -f demo` removes it anyway.")
	}
	in.Must(t, "apply", "demo")
	wantFile(t, filepath.Join(dir, "a"), "2\n")
	refused(t, in.Agbox(t, "rm", "demo"), 4, "Removing sandbox demo would lose 1 running command (sleep 1000). `agbox ps demo` lists the commands. `agbox rm -f demo` removes it anyway.")
	in.Must(t, "kill", job)
	in.Agbox(t, "wait", job)
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	in.inside(t, "demo", "echo 3 > /workspace/a")
	in.Must(t, "stop", "demo")
	lost := "Removing sandbox demo would lose 1 changed file (a). `agbox diff demo` shows the changes, `agbox apply demo` brings them back."
	refused(t, in.Agbox(t, "rm", "demo"), 4, lost+" `agbox rm -f demo` removes it anyway.")
	refused(t, in.Agbox(t, "delete", "demo"), 2, "`agbox rm` removes sandboxes.")
	if r := in.Agbox(t, "prune").Want(t, 2); !strings.Contains(r.Stderr, "agbox: "+lost+"\nagbox: Sandboxes to remove: 1. Without a terminal agbox prune needs -f.") {
		t.Errorf("without a terminal, prune says %q", r.Stderr)
	}
	prune := in.OnTerminal(t, "prune")
	prune.Await("Remove all of these")
	prune.Types("n\n")
	if out := strings.Join(strings.Fields(prune.Screen()), " "); !strings.Contains(out, lost) {
		t.Errorf("prune says %q", out)
	}
	if code := prune.Wait(); code != 0 {
		t.Errorf("prune ended with %d", code)
	}
	in.Must(t, "apply", "demo")
	in.Must(t, "rm", "demo") // stopped, and nothing is lost
	in.Create(t, "forced", harness.ImageUser, "--workspace", dir)
	in.inside(t, "forced", "echo 4 > /workspace/a")
	asked := in.OnTerminal(t, "rm", "forced")
	asked.Await("Remove it anyway?")
	asked.Types("n\n")
	if code := asked.Wait(); code != 4 {
		t.Errorf("rm ended with %d", code)
	}
	in.Must(t, "rm", "-f", "forced")
}

func TestRunAndDownSayWhatTheyRemove(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n", "agbox.yaml": "image: " + harness.ImageUser + "\nworkspace:\n  source: .\n"})
	r := in.from(t, dir, nil, "run", "--rm", "--workspace", ".", harness.ImageUser, "sh", "-c", "echo 4 > a").Want(t, 0)
	if !strings.Contains(r.Stderr, "--rm removes the sandbox with 1 changed file (a).") {
		t.Errorf("run --rm says %q", r.Stderr)
	}
	in.from(t, dir, nil, "up", "--trust").Want(t, 0)
	in.inside(t, "project", "echo 5 > /workspace/a")
	refused(t, in.from(t, dir, nil, "down", "--rm"), 4, "Removing sandbox project would lose 1 changed file (a).")
	refused(t, in.from(t, dir, nil, "down", "-f"), 2, "-f is for --rm.")
	in.from(t, dir, nil, "down", "--rm", "-f").Want(t, 0)
}

func TestWhatIsKeptAboutConflictsGoesWithTheSandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "project", map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "echo sandbox > /workspace/a")
	in.write(t, "project", map[string]string{"a": "folder\n"})
	in.Agbox(t, "apply", "demo").Want(t, 1)
	kept := func() []string {
		all, err := filepath.Glob(filepath.Join(in.Home, "data/folders/*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if left := kept(); len(left) != 1 {
		t.Fatalf("with a conflict there is %v", left)
	}
	in.Must(t, "rm", "-f", "demo")
	harness.Eventually(t, "nothing is kept about the removed sandbox", func() bool { return len(kept()) == 0 })
}
