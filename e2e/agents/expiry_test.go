package agents

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestTheLeasesOfAnAgentWithoutAProgramExpire stops the sandbox of an agent that holds leases,
// and kills the daemon. A younger agent, which has died for one of them, gets it then. The older
// one learns what it has lost, and gets its leases again, with higher fencing numbers.
func TestTheLeasesOfAnAgentWithoutAProgramExpire(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	other := in.Create(t, "other", harness.ImageBusybox)
	older := spawnSpec(t, in, `
		if [ $AGBOX_INCARNATION = 1 ]; then
			agbox-agent acquire file:/a x || exit 90
			while agbox-agent drained > /dev/null; do sleep 0.02; done; exit 75
		fi
		agbox-agent hydrate || exit 91
		agbox-agent acquire --wait file:/a x || exit 92
		agbox-agent done complete`, &agboxv1.AgentSpec{Name: "older", LeaseTtl: durationpb.New(500 * time.Millisecond)})
	holds := func(id string, want ...string) {
		t.Helper()
		until(t, in, id, "it holds "+strings.Join(want, ", "), func(a *agboxv1.Agent) bool {
			var names []string
			for _, l := range a.GetLeases() {
				names = append(names, l.GetResource())
			}
			return slices.Equal(names, want)
		})
	}
	holds(older, "file:/a", "x")
	younger := spawn(t, in, gated+`agbox-agent acquire file:/a; [ $? = 11 ] || exit 90
		agbox-agent acquire --wait file:/a || exit 91
		pass 1; agbox-agent done complete`, "younger", "--in", "other", "--reach", "sandbox:demo")
	until(t, in, younger, "the younger one has died", func(a *agboxv1.Agent) bool { return a.GetWord() == "PAUSED" })
	in.Must(t, "stop", "demo")
	in.KillDaemon(t)
	in.Must(t, "agent", "ls")
	holds(older)
	holds(younger, "file:/a")
	in.Must(t, "start", "demo")
	until(t, in, older, "the older one waits for what it has lost", func(a *agboxv1.Agent) bool {
		return a.GetWord() == "PAUSED" && strings.HasPrefix(a.GetMessage(), "It waits for younger, which holds file:/a.")
	})
	open(t, in, other, 1)
	await(t, in, younger, "COMPLETED")
	await(t, in, older, "COMPLETED")
	if out := in.Must(t, "agent", "logs", older); !strings.Contains(out, `"leases_lost":["file:/a","x"]`) {
		t.Errorf("the older one was not told what it has lost:\n%s", out)
	}
	expired := 0
	for _, ev := range historyOf(t, in, older) {
		if ev.GetType() == agboxv1.AgentEventType_AGENT_LEASES_EXPIRED {
			expired++
		}
	}
	if expired != 1 {
		t.Errorf("the leases expired %d times; want 1", expired)
	}
	old, young := fencesOf(t, in, older), fencesOf(t, in, younger)
	if len(old) != 2 || len(young) != 1 || young[0] <= old[0] || old[1] <= young[0] {
		t.Errorf("the fencing numbers of file:/a are %v of the older and %v of the younger one; want each higher than the one before", old, young)
	}
}

// fencesOf returns the fencing numbers of file:/a that the programs of an agent were told.
func fencesOf(t *testing.T, in *harness.Install, id string) (list []uint64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^file:/a\texclusive\t(\d+)$`).FindAllStringSubmatch(in.Must(t, "agent", "logs", id), -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}
