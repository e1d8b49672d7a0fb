package incarnations

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
)

func TestTheFileOfAnAgentSaysWhatItsIncarnationWasBegunWith(t *testing.T) {
	b := newBench(t, new(agboxv1.AgentSpec))
	install, log := b.Install, slog.New(slog.DiscardHandler)
	a := ledger.Agent{
		Record: agents.Record{
			ID: "a", Name: "fixer", SandboxID: "s", Owned: true, Strategy: agents.ReducedFootprint,
			Parent: "p", Depth: 2, Stack: "team", StackRoots: []string{"sandbox:s", "r"}, Reach: "stack:team", Incarnations: 3,
			Incarnation: &agents.Incarnation{N: 3, Attempt: 2, Before: &agboxv1.AgentProgress{Steps: 7}},
		},
		Spec: &agboxv1.AgentSpec{Command: []string{"run", ""}, Envs: map[string]string{"X": "y"}},
	}
	for range 2 { // the second replaces the first
		if err := b.Describe(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"half": `{"agent_id":"half","sandbox_id":"s"`, "other": `{"agent_id":"a","sandbox_id":"s","incarnation":1,"spec":{}}`,
		"way": `{"agent_id":"way","sandbox_id":"../s","incarnation":1,"spec":{}}`,
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
		got.Strategy != agents.ReducedFootprint || got.Progress.GetSteps() != 7 || !proto.Equal(got.Spec, a.Spec) ||
		got.Parent != "p" || got.Depth != 2 || got.Stack != "team" || got.Reach != "stack:team" || !slices.Equal(got.StackRoots, []string{"sandbox:s", "r"}) {
		t.Errorf("it is %+v", got)
	}
	// While it waits for its next incarnation, another agent adopts it, and its sandbox is made anew.
	a.Incarnation, a.Parent, a.SandboxID = nil, "grandparent", "new"
	if err := b.Describe(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if got := AdoptAll(install, log)[0]; got.Parent != "grandparent" || got.SandboxID != "new" || got.Incarnation != 3 || got.Attempt != 2 || got.Progress.GetSteps() != 7 {
		t.Errorf("later it is %+v", got)
	}
	for _, want := range []bool{true, false} {
		if removed, err := b.RemoveMeta("a"); removed != want || err != nil {
			t.Errorf("removed %v, %v; want %v", removed, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(install.Agents(), "a")); err == nil {
		t.Error("its empty folder stays")
	}
}

func TestTheFileOfAnAgentThatHasNotBegunHasItsWork(t *testing.T) {
	b := newBench(t, new(agboxv1.AgentSpec))
	a, err := b.Ledger.SpawnAgent(t.Context(), ledger.NewAgent{
		ID: "next", Parent: "x", SandboxID: "a", Work: []byte("do it"), Spec: &agboxv1.AgentSpec{Command: []string{"true"}, After: []string{"x"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Describe(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	found := AdoptAll(b.Install, slog.New(slog.DiscardHandler))
	if len(found) != 1 || found[0].Incarnation != 0 || string(found[0].Work) != "do it" || found[0].Parent != "x" || !slices.Equal(found[0].After, []string{"x"}) {
		t.Errorf("what is adopted is %+v", found)
	}
}

// TestTheFilesOfAgentsFromBeforeSandboxesWereBordersGetThem: a file from before has no border, or
// only the stacks of the agent.
func TestTheFilesOfAgentsFromBeforeSandboxesWereBordersGetThem(t *testing.T) {
	install := paths.Install{Data: t.TempDir()}
	for id, text := range map[string]string{
		"boss": `{"agent_id":"boss","depth":1,"stack":"team","stack_roots":["boss"],"sandbox_id":"s","spec":{}}`,
		"akid": `{"agent_id":"akid","parent":"boss","depth":2,"stack":"team","stack_roots":["boss"],"sandbox_id":"agent-akid","owned":true,"spec":{}}`,
		"anew": `{"agent_id":"anew","depth":1,"sandbox_id":"agent-akid","spec":{}}`,
		"lost": `{"agent_id":"lost","parent":"gone","depth":2,"sandbox_id":"third","spec":{}}`,
		"free": `{"agent_id":"free","depth":1,"stack_roots":["reach:all"],"sandbox_id":"third","spec":{}}`,
		"ring": `{"agent_id":"ring","parent":"ring","depth":1,"sandbox_id":"third","spec":{}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(install.AgentMeta(id)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(install.AgentMeta(id), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := make(map[string]string)
	for _, a := range AdoptAll(install, slog.New(slog.DiscardHandler)) {
		got[a.ID] = fmt.Sprint(a.StackRoots)
	}
	want := map[string]string{
		"boss": "[sandbox:s boss]", "akid": "[sandbox:s boss]", "anew": "[sandbox:s]", "lost": "[sandbox:third]", "free": "[reach:all]", "ring": "[sandbox:third]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the borders are %v; want %v", got, want)
	}
}
