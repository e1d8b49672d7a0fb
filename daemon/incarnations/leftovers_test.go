package incarnations

import (
	"os"
	"path/filepath"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/logs"
)

func TestWhatAnEndedAgentHasLeftIsRemovedOnce(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	a := b.agent()
	a.Incarnations = 3
	if err := b.Describe(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	folder := b.Install.SandboxLogs("a")
	for _, n := range []uint32{1, 3} {
		if err := os.WriteFile(filepath.Join(folder, logs.BeatName(agents.ExecID("x", n))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, logs.BeatName(agents.ExecID("x", 2))), 0o700); err != nil { // by root in the sandbox
		t.Fatal(err)
	}
	for _, want := range []int{3, 0} {
		if removed, err := b.RemoveLeft(a); removed != want || err != nil {
			t.Errorf("%d files are removed, %v; want %d", removed, err, want)
		}
	}
	// In a sandbox that the agent has left.
	a.Moves = []agents.Stay{{First: 1, Last: 3, SandboxID: "a"}}
	a.SandboxID = "moved"
	if err := os.WriteFile(filepath.Join(folder, logs.BeatName(agents.ExecID("x", 1))), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := b.RemoveLeft(a); removed != 1 || err != nil {
		t.Errorf("after a move %d files are removed, %v", removed, err)
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if removed, err := b.RemoveLeft(a); removed != 0 || err != nil {
		t.Errorf("without the logs of its sandbox: %d, %v", removed, err)
	}
}

// TestTheCopyForASpawnThatACrashEndedIsRemoved: the checkpoint is copied before the agent is
// accepted.
func TestTheCopyForASpawnThatACrashEndedIsRemoved(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{})
	folder := func(id string) string {
		dir := b.Install.AgentCheckpoints(id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return b.Install.Agent(id)
	}
	stray, accepted, lost := folder("stray"), folder("x"), folder("lost")
	if err := os.WriteFile(b.Install.AgentMeta("lost"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.RemoveStrays(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]bool{stray: false, accepted: true, lost: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", filepath.Base(dir), err)
		}
	}
	if err := os.RemoveAll(b.Install.Agents()); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveStrays(t.Context()); err != nil {
		t.Errorf("without agents: %v", err)
	}
}
