package faults

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// workshop is a sandbox for robots.
type workshop struct {
	*witness
	folder robot.Folder
	box    string
}

func newWorkshop(t *testing.T, w *witness, more ...string) workshop {
	t.Helper()
	folder, err := robot.Place(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return workshop{w, folder, w.box(t, append(folder.Mount(), more...)...)}
}

// spawn starts an agent that tries again at once.
func (s workshop) spawn(ctx context.Context, id string, p robot.Plan, more ...func(*agboxv1.AgentSpec)) error {
	spec := &agboxv1.AgentSpec{
		Command: p.Command(), Retry: &agboxv1.AgentRetry{Attempts: 100, Oom: 100, Delays: []*durationpb.Duration{durationpb.New(0)}},
	}
	for _, change := range more {
		change(spec)
	}
	_, err := s.c.SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{AgentId: id, Spec: spec, SandboxId: s.box})
	return err
}

// await waits for the end of an agent and for the state it ends in.
func (s workshop) await(ctx context.Context, id string, state agboxv1.AgentState) error {
	a, err := s.c.WaitAgent(ctx, id)
	if err == nil && a.GetState() != state {
		err = fmt.Errorf("agent %s is %s (%s)", id, a.GetWord(), a.GetMessage())
	}
	return err
}

// completed checks an agent that has completed its work and had that many crashes.
func (s workshop) completed(t *testing.T, id string, p robot.Plan, crashes uint32) {
	t.Helper()
	a, err := s.c.GetAgent(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	s.folder.Story(t, id).CheckCompleted(t, a, p)
	if a.GetCrashes() != crashes {
		t.Errorf("agent %s has %d crashes; want %d", id, a.GetCrashes(), crashes)
	}
	if p.Checkpoint > 0 {
		s.checkCheckpoint(t, a)
	}
	s.checkEvents(t, id, a.GetLastSequence())
}

// checkCheckpoint checks that the file of the newest checkpoint is there and whole.
func (s workshop) checkCheckpoint(t *testing.T, a *agboxv1.Agent) {
	t.Helper()
	newest := a.GetCheckpoint()
	raw, err := os.ReadFile(filepath.Join(s.in.Home, "data", "agents", a.GetAgentId(), "checkpoints", fmt.Sprintf("%d.json", newest.GetSeq())))
	if err != nil {
		t.Error(err)
		return
	}
	if sum := crc32.ChecksumIEEE(raw); sum != newest.GetCrc32() || uint64(len(raw)) != newest.GetBytes() {
		t.Errorf("agent %s: its checkpoint has %d bytes and the sum %08x; recorded is %v", a.GetAgentId(), len(raw), sum, newest)
	}
}

// checkEvents checks that an agent has no event twice, and that no incarnation began before
// the end of the one before. Of the events of progress only the newest are kept.
func (s workshop) checkEvents(t *testing.T, id string, last uint64) {
	t.Helper()
	newest, running := uint64(0), uint32(0)
	for ev, err := range s.c.WatchAgents(harness.Bounded(t), id, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetSequence() <= newest {
			t.Errorf("agent %s has event %d after %d", id, ev.GetSequence(), newest)
		}
		newest = ev.GetSequence()
		switch {
		case ev.GetBegun() != nil && running != 0:
			t.Errorf("agent %s: incarnation %d began while %d was recorded", id, ev.GetIncarnation(), running)
		case ev.GetBegun() != nil:
			running = ev.GetIncarnation()
		case ev.GetEnd() != nil:
			running = 0
		}
		if ev.GetSequence() >= last {
			return
		}
	}
}

// gone reports whether there is no such agent.
func (s workshop) gone(ctx context.Context, id string) error {
	if a, err := s.c.GetAgent(ctx, id); !errors.Is(err, client.ErrNotFound) {
		return fmt.Errorf("agent %s is still there: %v (%w)", id, a, err)
	}
	return nil
}
