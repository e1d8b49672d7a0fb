package agents

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// spawnDrained starts an agent in a sandbox whose drain takes SIGTERM after preStop, and
// SIGKILL 4 s after that.
func spawnDrained(t *testing.T, in *harness.Install, box, name string, preStop time.Duration, script string) {
	t.Helper()
	_, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		Name: name, Command: []string{"sh", "-c", script},
		Drain: &agboxv1.AgentDrain{
			PreStop: durationpb.New(preStop), Step: durationpb.New(time.Second / 2), Cleanup: durationpb.New(time.Second / 4), Buffer: durationpb.New(4*time.Second - time.Second*3/4),
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	up(t, in, name)
}

// up waits until the program has written "up".
func up(t *testing.T, in *harness.Install, name string) {
	t.Helper()
	harness.Eventually(t, name+" works", func() bool { return strings.HasPrefix(in.Must(t, "agent", "logs", name), "up") })
}

const (
	// willing exits when it is told, before SIGTERM. In the second incarnation it completes.
	willing = `[ $AGBOX_INCARNATION = 2 ] && { agbox-agent done complete; exit 0; }
		trap "echo term" TERM; echo up
		while left=$(agbox-agent drained); do sleep 0.02; done
		[ "$left" -gt 0 ] && echo saved`
	// deaf does not.
	deaf = `[ $AGBOX_INCARNATION = 2 ] && { agbox-agent done complete; exit 0; }
		trap "echo term" TERM; echo up; while :; do sleep 0.02; done`
)

func TestAStopLetsAgentsSaveTheirWork(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	spawnDrained(t, in, box, "willing", time.Minute-2*time.Second, willing)
	spawnDrained(t, in, box, "deaf", time.Second/10, deaf)
	said := in.Agbox(t, "stop", "demo").Want(t, 0).Stderr
	if !regexp.MustCompile(`Waiting for agents to save their work: (willing, )?deaf\. With --now, sandbox demo ends`).MatchString(said) { // the willing may have ended
		t.Errorf("stop says %q", said)
	}
	harness.WantSame(t, "output of the willing", in.Must(t, "agent", "logs", "willing"), "up\nsaved")
	harness.WantSame(t, "output of the deaf", in.Must(t, "agent", "logs", "deaf"), "up\nterm")
	in.Must(t, "start", "demo")
	for _, name := range []string{"willing", "deaf"} {
		if a := await(t, in, name, "COMPLETED"); a.GetCrashes() != 0 {
			t.Errorf("%s: %d crashes", name, a.GetCrashes())
		}
		wantHistory(t, in, name, "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED DRAINED, PAUSED DRAINED, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
	}
}

func TestADrainedAgentWaitsUntilItIsResumed(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	spawnDrained(t, in, box, "one", time.Second, willing)
	id := in.Must(t, "agent", "drain", "one")
	if g := in.Must(t, "agent", "drain", "--sandbox", "demo"); g != id {
		t.Errorf("a second drain prints %q; want %q", g, id)
	}
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	wantHistory(t, in, "one", "SPAWNED, BEGUN, PHASE, PHASE, PAUSE_REQUESTED REQUEST, INCARNATION_ENDED DRAINED, PAUSED REQUEST")
	in.Must(t, "agent", "resume", "one")
	await(t, in, "one", "COMPLETED")
	for _, args := range [][]string{{"agent", "drain", "one"}, {"agent", "resume", "one"}} {
		if r := in.Agbox(t, args...).Want(t, 4); !strings.Contains(r.Stderr, "is COMPLETED and cannot be") {
			t.Errorf("%v is refused with %q", args, r.Stderr)
		}
	}
	in.Agbox(t, "agent", "drain").Want(t, 2)
	in.Agbox(t, "agent", "drain", "--all", "one").Want(t, 2)
	harness.WantSame(t, "agents drained by --all", in.Must(t, "agent", "drain", "--all"), "")
}

// TestADrainGoesOnWithoutADaemon kills the daemon in the middle of a drain. The supervisor
// ends the program in time, and the next daemon knows that it was drained.
func TestADrainGoesOnWithoutADaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	spawnDrained(t, in, box, "one", time.Second, `[ $AGBOX_INCARNATION = 2 ] && { agbox-agent done complete; exit 0; }
		trap "touch /var/log/agents-sandbox/term" TERM; echo up
		while agbox-agent drained > /dev/null; do sleep 0.02; done; touch /var/log/agents-sandbox/told; while :; do sleep 0.02; done`)
	in.Must(t, "agent", "drain", "--no-wait", "one")
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(folder, name)); return err == nil }
	}
	harness.Eventually(t, "the program is told", exists("told"))
	in.KillDaemon(t)
	harness.Eventually(t, "the program gets SIGTERM without a daemon", exists("term"))
	in.Must(t, "agent", "resume", "one") // starts the daemon
	if a := await(t, in, "one", "COMPLETED"); a.GetCrashes() != 0 {
		t.Errorf("%d crashes", a.GetCrashes())
	}
}

func TestWhatDoesNotWaitForADrain(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	const long = 50 * time.Second
	spawnDrained(t, in, box, "killed", long, willingButSlow)
	spawnDrained(t, in, box, "stopped", long, willingButSlow)
	in.Must(t, "agent", "drain", "--no-wait", "killed")
	in.Must(t, "agent", "kill", "--now", "killed")
	await(t, in, "killed", "ABORTED")
	waiting := in.Start(t, "stop", "demo")
	in.Must(t, "stop", "--now", "demo")
	waiting.Wait(t).Want(t, 0)
	in.Must(t, "start", "demo")
	up(t, in, "stopped")
	in.Must(t, "rm", "-f", "--now", "demo")
	if a := await(t, in, "stopped", "FAILED"); a.GetMessage() != "Its sandbox was deleted." {
		t.Errorf("it says %q", a.GetMessage())
	}
}

// willingButSlow exits at SIGTERM only.
const willingButSlow = `echo up; exec sleep 1000`
