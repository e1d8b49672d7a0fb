package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestACommandThatFillsTheLogsCostsNoAgentItsReports(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	settings := filepath.Join(in.Home, "config", "agboxd.yaml")
	if err := os.MkdirAll(filepath.Dir(settings), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(settings, []byte("max-sandbox-log: 64k\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageBusybox)
	in.Must(t, "exec", "--name", "noisy", "demo", "--", "sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x >&2")
	id := spawn(t, in, `agbox-agent usage 7 8 0.5 && agbox-agent done complete "all is well"; exit 9`, "--in", "demo")
	a := await(t, in, id, "COMPLETED")
	if a.GetMessage() != "all is well" || a.GetProgress().GetTotal().GetInputTokens() != 7 {
		t.Errorf("the agent says %q, its progress is %v", a.GetMessage(), a.GetProgress())
	}
}
