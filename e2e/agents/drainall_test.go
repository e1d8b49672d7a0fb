package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestADrainGoesOnOverAnUpgrade upgrades the daemon in the middle of a drain, whose client
// waits.
func TestADrainGoesOnOverAnUpgrade(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	spawnDrained(t, in, box, "one", time.Minute-2*time.Second, `[ $AGBOX_INCARNATION = 2 ] && { agbox-agent done complete; exit 0; }
		cd /var/log/agents-sandbox; echo up
		while agbox-agent drained > /dev/null; do sleep 0.02; done; touch told
		while [ ! -e save ]; do sleep 0.02; done; echo '{"saved":true}' | agbox-agent checkpoint --step 7`)
	waiting := in.Start(t, "agent", "drain", "one")
	harness.Eventually(t, "the program is told", func() bool { _, err := os.Stat(filepath.Join(folder, "told")); return err == nil })
	for range 2 {
		in.Must(t, "daemon", "upgrade")
	}
	if err := os.WriteFile(filepath.Join(folder, "save"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waiting.Wait(t).Want(t, 0)
	wantHistory(t, in, "one", "SPAWNED, BEGUN, PHASE, PHASE, PAUSE_REQUESTED REQUEST, CHECKPOINT, INCARNATION_ENDED DRAINED, PAUSED REQUEST")
	in.Must(t, "agent", "resume", "one")
	if a := await(t, in, "one", "COMPLETED"); a.GetCrashes() != 0 || a.GetCheckpoint().GetStep() != 7 {
		t.Errorf("%d crashes, checkpoint %v", a.GetCrashes(), a.GetCheckpoint())
	}
}

func TestAllAgentsAreDrainedAtOnce(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	var want []string
	for _, name := range []string{"one", "two"} {
		box := in.Create(t, name, harness.ImageBusybox)
		for _, agent := range []string{name + "-a", name + "-b"} {
			spawnDrained(t, in, box, agent, time.Second, willing)
			a, err := in.Client(t).GetAgent(harness.Bounded(t), in.AgentID(t, agent))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, a.GetAgentId())
		}
	}
	got := strings.Fields(in.Must(t, "agent", "drain", "--all"))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("drained are %q; want %q", got, want)
	}
	for _, id := range want {
		wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, PAUSE_REQUESTED REQUEST, INCARNATION_ENDED DRAINED, PAUSED REQUEST")
	}
	in.Must(t, append([]string{"agent", "resume"}, want...)...)
	for _, id := range want {
		if a := await(t, in, id, "COMPLETED"); a.GetCrashes() != 0 || a.GetIncarnation() != 2 {
			t.Errorf("%s: %d crashes in %d incarnations", id, a.GetCrashes(), a.GetIncarnation())
		}
	}
}
