package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestThePersonIsToldOfEachMessageOnce runs a command for the messages of agents to the operator,
// while the daemon is killed, and after another start of agbox.
func TestThePersonIsToldOfEachMessageOnce(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	told := filepath.Join(in.Home, "told")
	says := func(n int) {
		id := spawn(t, in, fmt.Sprintf("agbox-agent escalate 'word %d $(touch owned)'; agbox-agent done complete", n), "--in", "demo")
		await(t, in, id, "COMPLETED")
	}
	start := func() *harness.Process {
		return in.Start(t, "agent", "inbox", "init", "-f", "--notify", "cd "+in.Home+" && cat >>told")
	}
	words := func(n int) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("word %d was told", n), func() bool {
			raw, _ := os.ReadFile(told)
			return strings.Contains(string(raw), fmt.Sprintf("word %d ", n)) && !strings.Contains(in.Must(t, "agent", "inbox", "init"), fmt.Sprintf("word %d ", n))
		})
	}
	p := start()
	says(1)
	words(1)
	in.KillDaemon(t)
	says(2)
	words(2)
	p.Signal(t, syscall.SIGTERM)
	p.Wait(t)
	says(3)
	p = start()
	words(3)
	p.Signal(t, syscall.SIGTERM)
	p.Wait(t)
	raw, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		if got := strings.Count(string(raw), fmt.Sprintf("word %d ", n)); got != 1 {
			t.Errorf("word %d was told %d times:\n%s", n, got, raw)
		}
	}
	if _, err := os.Stat(filepath.Join(in.Home, "owned")); err == nil {
		t.Error("the shell has run what an agent wrote")
	}
}
