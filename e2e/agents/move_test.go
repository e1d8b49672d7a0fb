package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/runtime"
)

func TestAnAgentWhoseOwnContainerIsGoneGetsANewSandbox(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	id := in.Must(t, "agent", "spawn", "--image", harness.ImageBusybox, "--env", "API_TOKEN=secret", "--", "sh", "-c",
		`echo "$AGBOX_INCARNATION $API_TOKEN"; [ $AGBOX_INCARNATION = 2 ] || sleep 1000`)
	running(t, in, id, 1)
	harness.Eventually(t, "its first line is stored", func() bool { return in.Agbox(t, "agent", "logs", id).Stdout == "1 secret\n" })
	old := "agent-" + id
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), runtime.PrimaryName(old), container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	a := await(t, in, id, "COMPLETED")
	if a.GetSandboxId() == old || !a.GetOwned() || a.GetCrashes() != 0 {
		t.Errorf("it ran in %s, owned %v, with %d crashes", a.GetSandboxId(), a.GetOwned(), a.GetCrashes())
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED LOST, PAUSED ORPHANED, MOVED, BEGUN, RESUMED, INCARNATION_ENDED EXITED, ENDED")
	harness.WantSame(t, "output", in.Must(t, "agent", "attach", "--tail", "all", "-q", id), "1 secret\n2 secret")
	if err := in.Client(t).WaitDeleted(harness.Bounded(t), old); err != nil {
		t.Errorf("the old sandbox: %v", err)
	}
	if !strings.Contains(in.Must(t, "agent", "ls", "-a", "--sandbox", a.GetSandboxId(), "-q"), id) {
		t.Error("it is not listed among the agents of the new sandbox")
	}
	in.Must(t, "agent", "rm", id)
	harness.Eventually(t, "the new sandbox is removed", func() bool { return in.Must(t, "ls", "-q") == "" })
}

// TestChildrenFollowTheirParentToItsNewSandbox: they run in the sandbox that was made for it.
func TestChildrenFollowTheirParentToItsNewSandbox(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	file := filepath.Join(project(t, "name: home\nimage: "+harness.ImageBusybox+"\nagent: {may_spawn: {}}\n"), "agbox.yaml")
	id := spawn(t, in, `agbox-agent spawn --name child --key 1 -- sh -c '[ $AGBOX_INCARNATION -ge 2 ] || sleep 1000' || exit 90
		[ $AGBOX_INCARNATION -ge 2 ] || sleep 1000
		agbox-agent wait child | grep COMPLETED && agbox-agent done complete`, "-f", file)
	running(t, in, id, 1)
	harness.Eventually(t, "the child runs", func() bool {
		return strings.Contains(in.Agbox(t, "agent", "inspect", "child").Stdout, "EXECUTING")
	})
	if err := harness.DockerAPI.ContainerRemove(harness.Bounded(t), runtime.PrimaryName("agent-"+id), container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	a, child := await(t, in, id, "COMPLETED"), await(t, in, "child", "COMPLETED")
	if a.GetSandboxId() == "agent-"+id || child.GetSandboxId() != a.GetSandboxId() || child.GetOwned() || child.GetCrashes() != 0 {
		t.Errorf("it ran in %s, its child in %s", a.GetSandboxId(), child.GetSandboxId())
	}
	if got := in.Must(t, "inspect", "home"); !strings.Contains(got, a.GetSandboxId()) {
		t.Errorf("the new sandbox is not found by the name of the old one:\n%s", got)
	}
}
