package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// While it asks, it has all of the work, and nobody else has it once the sandbox is gone.
func TestWorkThatIsBeingBroughtComesAlthoughItsSandboxIsRemoved(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	for _, test := range []struct {
		name string
		args []string
		code int
	}{{"apply", []string{"apply"}, 0}, {"branch", []string{"apply", "--branch", "fix"}, 0}, {"sync", []string{"sync"}, 4}} {
		dir := in.write(t, test.name, map[string]string{"a": "1\n"})
		gitIn(t, dir, "init", "-q", "-b", "main")
		gitIn(t, dir, "add", ".")
		gitIn(t, dir, "commit", "-q", "-m", "first")
		gitIn(t, dir, "config", "user.name", "Ann")
		gitIn(t, dir, "config", "user.email", "ann@example.org")
		in.Create(t, test.name, harness.ImageUser, "--workspace", dir)
		in.inside(t, test.name, "cd /workspace; echo 2 > a; mkdir .vscode; echo t > .vscode/tasks.json")
		p := in.OnTerminal(t, append(test.args, test.name)...)
		p.Await("Bring them too?")
		in.Must(t, "rm", "-f", test.name)
		p.Types("y\n")
		if code := p.Wait(); code != test.code {
			t.Errorf("%s ended with %d: %s", test.name, code, p.Screen())
		}
		if test.name == "branch" {
			harness.WantSame(t, "the branch", gitIn(t, dir, "show", "fix:a", "fix:.vscode/tasks.json"), "2\nt\n")
		} else {
			wantFile(t, filepath.Join(dir, "a"), "2\n")
			wantFile(t, filepath.Join(dir, ".vscode/tasks.json"), "t\n")
		}
	}
	if left, _ := os.ReadDir(filepath.Join(in.Home, "data", "folders")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
