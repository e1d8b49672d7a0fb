package agents

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// workshop makes a folder for robots and a sandbox, named demo, that has it.
func workshop(t *testing.T, in *harness.Install, more ...string) robot.Folder {
	t.Helper()
	folder, err := robot.Place(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in.Create(t, "demo", harness.ImageBusybox, append(folder.Mount(), more...)...)
	return folder
}

// employ spawns an agent whose program is the robot, in the sandbox demo, and returns its
// id. The daemon must run.
func employ(t *testing.T, in *harness.Install, p robot.Plan, spec *agboxv1.AgentSpec) string {
	t.Helper()
	spec.Command = p.Command()
	a, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{Spec: spec, SandboxId: in.SandboxID(t, "demo")})
	if err != nil {
		t.Fatal(err)
	}
	return a.GetAgentId()
}

// patient is a spec that tries again at once, as often as the robot may die.
func patient() *agboxv1.AgentSpec {
	return &agboxv1.AgentSpec{Retry: &agboxv1.AgentRetry{Attempts: 100, Oom: 100, Delays: []*durationpb.Duration{durationpb.New(0)}}}
}

func TestARobotCompletesItsWorkWhateverDies(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in)
	plan := robot.Plan{Steps: 20, Seed: 7, Deaths: 4, WaitAt: 18, Checkpoint: 4 << 10}
	id := employ(t, in, plan, patient())
	atGate := func() bool { return folder.Story(t, id).Effects() == plan.WaitAt-1 }
	harness.Eventually(t, "the robot waits", atGate)

	in.KillDaemon(t)
	in.Must(t, "agent", "ls")
	box := in.Must(t, "ls", "-q")
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	if err := folder.Go(); err != nil {
		t.Fatal(err)
	}
	a := await(t, in, id, "COMPLETED")
	folder.Story(t, id).CheckCompleted(t, a, plan)
	if a.GetCrashes() != 4 || a.GetIncarnation() != 6 {
		t.Errorf("%d crashes, %d incarnations; want 4 and 6", a.GetCrashes(), a.GetIncarnation())
	}
}

func TestTheSecondTimeThatMemoryRunsOutEndsTheAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in, "--memory", "64m")
	plan := robot.Plan{Steps: 20, Seed: 3, Die: "1@6:oom,2@9:oom"}
	spec := patient()
	spec.Retry.Oom, spec.Retry.Reduced = 0, &agboxv1.AgentReduced{Envs: map[string]string{"AGBOX_BROWSER": "small"}}
	a := await(t, in, employ(t, in, plan, spec), "DEAD_LETTER")
	if a.GetCrashes() != 2 || !strings.HasPrefix(a.GetMessage(), "Memory ran out on each of 2 attempts") || !a.GetLastEnd().GetOomKilled() {
		t.Errorf("%d crashes: %s (%v)", a.GetCrashes(), a.GetMessage(), a.GetLastEnd())
	}
	story := folder.Story(t, a.GetAgentId())
	story.Check(t, a)
	for name, want := range map[string][2]string{
		"AGBOX_STRATEGY": {"", "reduced_footprint"}, "AGBOX_MAX_CONTEXT_TOKENS": {"", "50000"}, "AGBOX_BROWSER": {"", "small"},
		"AGBOX_MAX_CONCURRENT_TOOLS": {"", "1"}, "AGBOX_PREVIOUS_EXIT_CODE": {"", "137"}, "AGBOX_ATTEMPT": {"1", "2"},
	} {
		if got := [2]string{story.Env(1)[name], story.Env(2)[name]}; got != want {
			t.Errorf("%s is %q in the first and %q in the second incarnation; want %q", name, got[0], got[1], want)
		}
	}
}

func TestOneLackOfMemoryIsSurvivedWithAReducedFootprint(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	folder := workshop(t, in, "--memory", "64m")
	plan := robot.Plan{Steps: 6, Seed: 3, Die: "1@6:oom,2@6:exit3"}
	spec := patient()
	spec.Retry.Oom = 0
	a := await(t, in, employ(t, in, plan, spec), "COMPLETED")
	story := folder.Story(t, a.GetAgentId())
	story.CheckCompleted(t, a, plan)
	if got := story.Env(3)["AGBOX_STRATEGY"]; got != "escalating_backoff" || a.GetCrashes() != 2 {
		t.Errorf("after a lack of memory and exit code 3 the strategy is %q, with %d crashes", got, a.GetCrashes())
	}
}
