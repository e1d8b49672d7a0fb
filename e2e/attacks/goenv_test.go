package attacks

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestVariablesDoNotChangeTheSupervisor(t *testing.T) {
	Row(t, 13, "GOMEMLIMIT, GOGC and GODEBUG aim at the supervisor")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageBusybox, "--env", "GOMEMLIMIT=1", "--env", "GOGC=1", "--env", "GODEBUG=gctrace=1", "--env", "OTHER=x")
	primary := in.Inventory(t).Containers[0]
	seen, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), primary.ID)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", seen.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Split(string(raw), "\x00")
	for _, want := range []string{"GOMEMLIMIT=", "GOGC=", "GODEBUG=profstackdepth=0", "GOTRACEBACK=", "OTHER=x"} {
		if !slices.Contains(env, want) {
			t.Errorf("the supervisor does not run with %s, but with %q", want, env)
		}
	}
	if said := in.Must(t, "exec", box, "--", "sh", "-c", "echo $GOMEMLIMIT $GOGC $GODEBUG $OTHER ${GOTRACEBACK-unset}"); said != "1 1 gctrace=1 x unset" {
		t.Errorf("a command has %q", said)
	}
}
