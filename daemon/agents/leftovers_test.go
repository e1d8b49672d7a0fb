package agents

import (
	"os"
	"path/filepath"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine/agent"
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
		if err := os.WriteFile(filepath.Join(folder, logs.BeatName(agent.ExecID("x", n))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, logs.BeatName(agent.ExecID("x", 2))), 0o700); err != nil { // by root in the sandbox
		t.Fatal(err)
	}
	for _, want := range []int{3, 0} {
		if removed, err := b.RemoveLeft(a); removed != want || err != nil {
			t.Errorf("%d files are removed, %v; want %d", removed, err, want)
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	if removed, err := b.RemoveLeft(a); removed != 0 || err != nil {
		t.Errorf("without the logs of its sandbox: %d, %v", removed, err)
	}
}
