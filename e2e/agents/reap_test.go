package agents

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestNoBeatOutlivesItsIncarnation(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	beat := func(id string, n string) string {
		return filepath.Join(in.Home, "data", "exec-logs", box, "agent-"+id+"-"+n+".beat")
	}
	exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
	id := spawn(t, in, `agbox-agent beat; [ $AGBOX_INCARNATION = 1 ] && exit 4; agbox-agent done complete`, "--in", "demo", "--retry-delay", "10ms")
	runs := spawn(t, in, `agbox-agent beat; touch /var/log/agents-sandbox/up; sleep 1000`, "--in", "demo")
	await(t, in, id, "COMPLETED")
	harness.Eventually(t, "the other agent beats", func() bool { return exists(filepath.Join(in.Home, "data", "exec-logs", box, "up")) })
	for _, n := range []string{"1", "2"} {
		harness.Eventually(t, "beat "+n+" is removed", func() bool { return !exists(beat(id, n)) })
	}
	// As if a daemon had been killed between the end of an incarnation and the removal.
	for _, n := range []string{"1", "2"} {
		if err := os.WriteFile(beat(id, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in.Must(t, "agent", "reap")
	if exists(beat(id, "1")) || exists(beat(id, "2")) || !exists(beat(runs, "1")) {
		t.Error("the beats of ended incarnations are still there, or that of a running one is not")
	}
}
