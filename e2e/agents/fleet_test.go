package agents

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	"github.com/agbox/agbox/e2e/internal/robot/diary"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// attached follows an agent to its end and returns its end and its output. Its events must
// come in order, none twice. Of those of progress only the newest are kept.
func attached(ctx context.Context, c *client.Client, id string) (end *agboxv1.Agent, output string, err error) {
	var text strings.Builder
	sequence := uint64(0)
	for item, err := range c.AttachAgent(ctx, id, client.AgentAttachOptions{}) {
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("agent %s after event %d: %w", id, sequence, err)
		case item.End != nil:
			end = item.End
		case item.Event != nil:
			if item.Event.GetSequence() <= sequence {
				return nil, "", fmt.Errorf("agent %s: event %d came after %d", id, item.Event.GetSequence(), sequence)
			}
			sequence = item.Event.GetSequence()
		case item.Output != nil && item.Output.Stream == agboxv1.LogStream_LOG_STREAM_STDOUT:
			text.Write(item.Output.Data)
		}
	}
	return end, text.String(), nil
}

func TestAStopAndAnUpgradeUnderFiftyAgentsLoseNothing(t *testing.T) {
	t.Parallel()
	const number = 50
	in := harness.New(t)
	folder, err := robot.Place(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	boxes := []string{"one", "two"}
	var boxIDs []string
	for _, box := range boxes {
		boxIDs = append(boxIDs, in.Create(t, box, harness.ImageBusybox, folder.Mount()...))
	}
	c := in.Client(t)
	ctx, leave := context.WithCancel(harness.Bounded(t))
	var streams sync.WaitGroup
	defer func() {
		leave()
		streams.Wait()
	}()
	plan := robot.Plan{Steps: 12, Seed: 11, Pace: 300 * time.Millisecond, WaitAt: 9}
	want := func(id string) (lines string) {
		for step := range plan.Steps {
			lines += diary.Invocation(id, step+1) + "\n"
		}
		return lines
	}
	var ids []string
	for i := range number {
		spec := patient()
		spec.Command = plan.Command()
		a, err := c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: fmt.Sprintf("r-%d", i), Spec: spec, SandboxId: boxIDs[i%2]})
		if err != nil {
			t.Fatal(err)
		}
		id := a.GetAgentId()
		ids = append(ids, id)
		streams.Go(func() {
			end, output, err := attached(ctx, c, id)
			if err != nil {
				t.Error(err)
				return
			}
			harness.WantSame(t, "what the one attached to "+id+" saw", output, want(id))
			if end.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED {
				t.Errorf("the one attached to %s saw its end as %v", id, end)
			}
		})
	}
	all := func(what string, reached func(robot.Story) bool) {
		harness.Eventually(t, what, func() bool {
			for _, id := range ids {
				if !reached(folder.Story(t, id)) {
					return false
				}
			}
			return true
		})
	}
	all("each agent works", func(s robot.Story) bool { return s.Effects() >= 2 })
	in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(in.Bin, "agboxd"))
	all("each agent has worked on", func(s robot.Story) bool { return s.Effects() >= 4 })
	in.Must(t, append([]string{"stop"}, boxes...)...)
	in.Must(t, append([]string{"start"}, boxes...)...)
	all("each agent works again", func(s robot.Story) bool { return s.Count(diary.Begin) >= 2 })
	in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(in.Bin, "agboxd"))
	if err := folder.Go(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		a := await(t, in, id, "COMPLETED")
		folder.Story(t, id).CheckCompleted(t, a, plan)
		if a.GetCrashes() != 0 {
			t.Errorf("agent %s has %d crashes", id, a.GetCrashes())
		}
	}
	streams.Wait()
}
