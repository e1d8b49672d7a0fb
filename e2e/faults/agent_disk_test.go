package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAFullDiskRefusesACheckpointAndLosesNone fills the disk under an agent that saves
// checkpoints, then kills its program: what was acknowledged before is there.
func TestAFullDiskRefusesACheckpointAndLosesNone(t *testing.T) {
	t.Parallel()
	row := Row(t, 56, "no space for a checkpoint of an agent", 1)
	home, err := os.MkdirTemp("/tmp", "abd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	harness.SmallDisk(t, home, 64)
	in := harness.New(t, harness.At(home))
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(home, "data", "exec-logs", box)
	gate := func(name string) { // needs no space
		if err := os.Rename(filepath.Join(folder, "to-"+name), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"fill", "refused", "free"} {
		if err := os.WriteFile(filepath.Join(folder, "to-"+name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		Name: "one", Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(10 * time.Millisecond)}},
		Command: []string{"sh", "-c", `cd /var/log/agents-sandbox
			state() { echo "{\"n\":$1,\"fill\":\"$(head -c 300000 /dev/zero | tr '\0' x)\"}"; }
			[ $AGBOX_INCARNATION = 1 ] || { agbox-agent hydrate | grep -o '"n":[0-9]*'; agbox-agent done complete; exit; }
			for n in 1 2; do state $n | agbox-agent checkpoint --step $n || exit 90; done; echo ready
			while [ ! -e fill ]; do sleep 0.02; done
			for n in 3 4; do state $n | agbox-agent checkpoint --step $n 2> /tmp/why; [ $? = 4 ] || exit 91; done; mv to-refused refused
			while [ ! -e free ]; do sleep 0.02; done
			cat /tmp/why; state 5 | agbox-agent checkpoint --step 5 || exit 92
			exit 9`},
	}})
	if err != nil {
		t.Fatal(err)
	}
	logs := func() string { return in.Agbox(t, "agent", "logs", a.GetAgentId()).Stdout }
	harness.Eventually(t, "two checkpoints are saved", func() bool { return strings.Contains(logs(), "ready") })
	release := fill(t, home)
	gate("fill")
	harness.Eventually(t, "both are refused", func() bool {
		_, err := os.Stat(filepath.Join(folder, "refused"))
		return err == nil
	})
	if rows := in.Must(t, "agent", "journal", a.GetAgentId()); strings.Count(rows, `"op":"checkpoint"`) != 2 {
		t.Errorf("two checkpoints were acknowledged; the journal is\n%s", rows)
	}
	release()
	gate("free")
	got, err := in.Client(t).WaitAgent(harness.Bounded(t), a.GetAgentId())
	if err != nil {
		t.Fatal(err)
	}
	said := logs()
	row.Note("refused with %q", strings.TrimSpace(strings.TrimPrefix(said, "ready")))
	if got.GetWord() != "COMPLETED" || got.GetCheckpoint().GetStep() != 5 || !strings.Contains(said, "The report cannot be written down") || !strings.Contains(said, `"n":5`) {
		t.Errorf("the agent is %s (%s), its checkpoint %v; it said\n%s", got.GetWord(), got.GetMessage(), got.GetCheckpoint(), said)
	}
}

// TestAFullDiskUnderTheLogsStartsNoAgentAndCountsNothing: more starts in a row cannot be
// written down than crashes would open the breaker of the class, or end an agent.
func TestAFullDiskUnderTheLogsStartsNoAgentAndCountsNothing(t *testing.T) {
	t.Parallel()
	const number = 6
	Row(t, 70, "no space for the start of an agent", number)
	in := harness.New(t)
	dir := filepath.Join(in.Home, "data", "exec-logs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	harness.SmallDisk(t, dir, 32)
	w := newWitness(t, in)
	shop := newWorkshop(t, w)
	release := fill(t, dir)
	var ids []string
	for i := range number {
		id := fmt.Sprintf("r-%d", i)
		err := shop.spawn(harness.Bounded(t), id, robot.Plan{Steps: 2, Seed: 3}, func(spec *agboxv1.AgentSpec) {
			spec.Class, spec.Retry = "coder", &agboxv1.AgentRetry{Attempts: 1, Delays: []*durationpb.Duration{durationpb.New(0)}}
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	for _, id := range ids {
		harness.Eventually(t, "two starts of agent "+id+" cannot be written down", func() bool { return unstarted(t, w, id) >= 2 })
	}
	for _, id := range ids {
		a, err := w.c.GetAgent(harness.Bounded(t), id)
		waits := a.GetState() == agboxv1.AgentState_AGENT_STATE_PENDING || a.GetState() == agboxv1.AgentState_AGENT_STATE_PAUSED
		if err != nil || !waits || a.GetCrashes() != 0 {
			t.Errorf("agent %s is %v with %d crashes (%v); want it to wait for room", id, a.GetState(), a.GetCrashes(), err)
		}
	}
	wantNoBreaker(t, w)
	release()
	for _, id := range ids {
		if err := shop.await(harness.Bounded(t), id, agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
			t.Fatal(err)
		}
		shop.completed(t, id, robot.Plan{Steps: 2, Seed: 3}, 0)
	}
	told := make(map[string]int)
	for m, err := range w.c.Inbox(harness.Bounded(t), "init") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(m.GetText(), "cannot be started") {
			told[m.GetFrom()]++
		}
	}
	for _, id := range ids {
		if told[id] != 1 {
			t.Errorf("init was told of agent %s %d times; want once", id, told[id])
		}
	}
	w.check(t)
}

// unstarted counts the incarnations of an agent that were never started.
func unstarted(t *testing.T, w *witness, id string) (times int) {
	t.Helper()
	a, err := w.c.GetAgent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for ev, err := range w.c.WatchAgents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetEnd().GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED {
			times++
		}
		if ev.GetSequence() >= a.GetLastSequence() {
			return times
		}
	}
	return times
}
