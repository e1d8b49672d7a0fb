package agents

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/paths"
)

func TestTheFileOfAnAgentSaysWhatItsIncarnationWasBegunWith(t *testing.T) {
	install := paths.Install{Data: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	r := New(nil, nil, nil, install, nil, time.Now, log)
	a := ledger.Agent{
		Record: agent.Record{
			ID: "a", Name: "fixer", SandboxID: "s", Owned: true, Strategy: agent.ReducedFootprint,
			Incarnation: &agent.Incarnation{N: 3, Attempt: 2, Before: &agboxv1.AgentProgress{Steps: 7}},
		},
		Spec: &agboxv1.AgentSpec{Command: []string{"run", ""}, Envs: map[string]string{"X": "y"}},
	}
	for range 2 { // the second replaces the first
		if err := r.writeMeta(a); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"half": `{"agent_id":"half","sandbox_id":"s"`, "other": `{"agent_id":"a","sandbox_id":"s","incarnation":1,"spec":{}}`,
		"none": `{"agent_id":"none","sandbox_id":"s","spec":{}}`, "way": `{"agent_id":"way","sandbox_id":"../s","incarnation":1,"spec":{}}`,
	} {
		file := install.AgentMeta(name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := AdoptAll(install, log)
	if len(found) != 1 {
		t.Fatalf("%d agents are adopted: %+v", len(found), found)
	}
	got := found[0]
	if got.ID != "a" || got.Name != "fixer" || got.SandboxID != "s" || !got.Owned || got.Incarnation != 3 || got.Attempt != 2 ||
		got.Strategy != agent.ReducedFootprint || got.Progress.GetSteps() != 7 || !proto.Equal(got.Spec, a.Spec) {
		t.Errorf("it is %+v", got)
	}
	for _, want := range []bool{true, false} {
		if removed, err := r.RemoveMeta("a"); removed != want || err != nil {
			t.Errorf("removed %v, %v; want %v", removed, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(install.Agents(), "a")); err == nil {
		t.Error("its empty folder stays")
	}
}
