package attacks

import (
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAJournalThatASandboxLeavesIsNoInstruction(t *testing.T) {
	t.Parallel()
	Row(t, 4, "a journal of agbox apply in a mounted workspace")
	in := harness.New(t)
	dir := write(t, in, "project", map[string]string{"a": "1\n", ".envrc": "of the user\n"})
	version := func(text string) map[string]any {
		return map[string]any{"Size": len(text), "Sum": sha256.Sum256([]byte(text))}
	}
	journal, err := json.Marshal(map[string]any{"Sandbox": "demo", "Steps": []any{map[string]any{
		"Kind": 1, "Path": []byte(".envrc"), "Old": version("of the user\n"), "New": version("hostile\n"), "Staged": "1",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	in.Create(t, "hostile", harness.ImageBusybox, "--mount-workspace", dir)
	inside(t, in, "hostile", "cd /workspace; ! echo x >.envrc; mkdir -m 700 .agbox-apply; cd .agbox-apply; echo hostile >1; echo '"+string(journal)+"' >journal")
	in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	inside(t, in, "demo", "echo 2 >/workspace/a")
	r := in.Agbox(t, "apply", "demo").Want(t, 0)
	if r.Stdout != "M a\n" || !strings.Contains(r.Stderr, dir+"/.agbox-apply is not used") {
		t.Errorf("apply said %s%s", r.Stdout, r.Stderr)
	}
	for name, want := range map[string]string{"a": "2\n", ".envrc": "of the user\n", ".agbox-apply/1": "hostile\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q: %v", name, got, err)
		}
	}
}
