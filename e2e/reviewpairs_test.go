package e2e

import (
	"os"
	"path/filepath"
	"strings"
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

// All of them have found the work before the first has brought it.
func TestAppliesToBranchesAtOnceBringTheWorkOnceToEach(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.repository(t, map[string]string{"a": "1\n"})
	in.Create(t, "demo", harness.ImageUser, "--workspace", dir)
	in.inside(t, "demo", "cd /workspace; echo 2 > a; mkdir .vscode; echo t > .vscode/tasks.json")
	var all []*harness.Terminal
	for _, branch := range []string{"fix", "fix", "other"} {
		p := in.OnTerminal(t, "apply", "demo", "--branch", branch)
		p.Await("Bring them too?")
		all = append(all, p)
	}
	for i, says := range []string{"Branch fix has the work as commit ", "Branch fix has the work already.", "Branch other has the work as commit "} {
		all[i].Types("y\n")
		if code := all[i].Wait(); code != 0 || !strings.Contains(all[i].Screen(), says) {
			t.Errorf("apply %d ended with %d: %s", i, code, all[i].Screen())
		}
	}
	for _, branch := range []string{"fix", "other"} {
		harness.WantSame(t, branch, gitIn(t, dir, "show", branch+":a", branch+":.vscode/tasks.json"), "2\nt\n")
		harness.WantSame(t, "the commits of "+branch, gitIn(t, dir, "rev-list", "--count", "main.."+branch), "1\n")
	}
	in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
}
