package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// outsourcing is the program of an agent that hands its workspace to a child in a sandbox of its
// own. What it writes after spawn has returned must not reach the child.
const outsourcing = `cd /workspace; echo before > $AGBOX_AGENT_ID
	agbox-agent spawn --name kid-$AGBOX_AGENT_ID --key kid --sandbox new -- sh -c '
		[ "$(cat /workspace/$AGBOX_PARENT)" = before ] && [ "$(ls /workspace/many | wc -l)" = 300 ] && agbox-agent done complete' || exit 90
	echo after > $AGBOX_AGENT_ID
	agbox-agent wait kid-$AGBOX_AGENT_ID | grep -q COMPLETED && agbox-agent done complete`

func TestKillAtManyBoundariesOfAChildsOwnSandbox(t *testing.T) {
	t.Parallel()
	row := Row(t, 72, "SIGKILL at boundaries of a spawn with a sandbox of its own, its copy of the workspace and its end", 0)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "many"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(dir, "many", fmt.Sprint(i)), []byte(fmt.Sprint(i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorkshop(t, newWitness(t, harness.New(t)), "--workspace", dir)
	id := func(n int) string { return fmt.Sprintf("boss-%d", n) }
	kills, calls := sweep(t, w.witness, operation{
		name: "child's own sandbox",
		step: 9, // of about 110
		run: func(ctx context.Context, n int) error {
			spec := &agboxv1.AgentSpec{
				Command: []string{"sh", "-c", outsourcing}, MaySpawn: &agboxv1.AgentMaySpawn{}, CleanupAfter: durationpb.New(0),
				Retry: &agboxv1.AgentRetry{Attempts: 1},
			}
			if _, err := w.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id(n), Spec: spec, SandboxId: w.box}); err != nil {
				return err
			}
			if err := w.await(ctx, id(n), agboxv1.AgentState_AGENT_STATE_COMPLETED); err != nil {
				return err
			}
			kid, err := w.agent(ctx, "kid-"+id(n))
			if err != nil {
				return err
			}
			return w.c.WaitDeleted(ctx, kid.GetSandboxId())
		},
		verify: func(t *testing.T, k kill) {
			kid, err := w.agent(harness.Bounded(t), "kid-"+id(k.n))
			if err != nil {
				t.Fatal(err)
			}
			if !kid.GetOwned() || kid.GetIncarnation() != 1 || kid.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED || kid.GetSandboxId() != "agent-"+kid.GetAgentId() {
				t.Errorf("before %s: the child is %v", k.before, kid)
			}
			w.wantCounts(t, kid, map[agboxv1.AgentEventType]int{agboxv1.AgentEventType_AGENT_SPAWNED: 1, agboxv1.AgentEventType_AGENT_BEGUN: 1})
			if list, err := w.c.ListSandboxes(harness.Bounded(t), client.ListOptions{}); err != nil || len(list) != 1 {
				t.Errorf("before %s: there are %d sandboxes, %v", k.before, len(list), err)
			}
		},
	})
	row.Ran(kills)
	row.Note("child's own sandbox: before %s", calls)
	w.check(t)
}
