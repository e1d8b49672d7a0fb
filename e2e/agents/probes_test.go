package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// spawnSpec starts an agent with a shell script in the sandbox demo and returns its id.
func spawnSpec(t *testing.T, in *harness.Install, script string, spec *agboxv1.AgentSpec) string {
	t.Helper()
	spec.Command = []string{"sh", "-c", script}
	a, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{Spec: spec, SandboxId: in.SandboxID(t, "demo")})
	if err != nil {
		t.Fatal(err)
	}
	return a.GetAgentId()
}

// every is a probe of HTTP with short times.
func every(period time.Duration, failures uint32) *agboxv1.AgentProbe {
	return &agboxv1.AgentProbe{Period: durationpb.New(period), Timeout: durationpb.New(3 * time.Second), Failures: failures}
}

// The program answers its probes by "agbox-agent serve-health". In its first incarnation
// the whole program freezes.
func TestAFrozenProgramFailsItsLivenessProbe(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawnSpec(t, in, gated+`
		agbox-agent serve-health &
		agbox-agent state HYDRATING
		pass 1; agbox-agent state READY; agbox-agent state EXECUTING
		[ $AGBOX_INCARNATION = 2 ] && agbox-agent done complete "back again" && exit 0
		pass 2; kill -STOP 0; exit 99`, &agboxv1.AgentSpec{
		Ready:  agboxv1.AgentReady_AGENT_READY_PROBE,
		Retry:  patient().GetRetry(),
		Probes: &agboxv1.AgentProbes{Liveness: every(500*time.Millisecond, 2), Readiness: every(100*time.Millisecond, 2), Startup: every(100*time.Millisecond, 900)},
	})
	until(t, in, id, "the program is not ready while it hydrates", func(a *agboxv1.Agent) bool {
		return a.Ready != nil && !a.GetReady() && a.GetState() == agboxv1.AgentState_AGENT_STATE_PENDING
	})
	open(t, in, box, 1)
	until(t, in, id, "the program is ready", func(a *agboxv1.Agent) bool {
		return a.GetReady() && a.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING
	})
	if out := in.Must(t, "agent", "inspect", id); !strings.Contains(out, "ready: true") {
		t.Errorf("the details do not show that the program is ready:\n%s", out)
	}
	in.KillDaemon(t) // the supervisor needs none
	open(t, in, box, 2)
	in.Must(t, "agent", "ls") // starts the daemon
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 1 || a.GetIncarnation() != 2 || a.Ready != nil {
		t.Errorf("%d crashes, %d incarnations, ready %v", a.GetCrashes(), a.GetIncarnation(), a.Ready)
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED LIVENESS, PAUSED CRASH, BEGUN, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

func TestAProgramThatDoesNotReportThatItIsReadyEnds(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawnSpec(t, in, `trap 'agbox-agent say "too late"; exit 3' TERM; agbox-agent state HYDRATING; sleep 1000 & wait`, &agboxv1.AgentSpec{
		Ready:  agboxv1.AgentReady_AGENT_READY_REPORT,
		Retry:  &agboxv1.AgentRetry{Attempts: 1},
		Probes: &agboxv1.AgentProbes{Startup: every(time.Second, 6)},
	})
	a := await(t, in, id, "DEAD_LETTER")
	if end := a.GetLastEnd(); end.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP || end.GetExitCode() != 3 || a.GetProgress().GetLastMessage() != "too late" {
		t.Errorf("its incarnation ended as %v after %v", end, a.GetProgress())
	}
	if !strings.Contains(a.GetMessage(), "It did not become ready in time.") {
		t.Errorf("the agent says %q", a.GetMessage())
	}
}
