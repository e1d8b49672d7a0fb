package agents

import (
	"fmt"
	"math/rand/v2"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// spawnedAs is the record of an agent after its first event.
func spawnedAs(id string, s *agboxv1.AgentSpawned) *Record {
	r := Fold(Record{}, &agboxv1.AgentEvent{
		AgentId: id, Sequence: 1, Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: s},
	})
	return &r
}

func TestOnlyAnAgentFromBeforeSandboxesWereBordersGetsThatOfItsSandbox(t *testing.T) {
	for _, row := range []struct {
		id     string
		roots  []string
		want   string
		before bool
	}{
		{"a", nil, "[sandbox:s]", true},
		{"a", []string{"root"}, "[sandbox:s root]", true},
		{"all", []string{"all"}, "[sandbox:s all]", true}, // the root of a stack, whose id is that
		{"a", []string{"sandbox:t", "root"}, "[sandbox:t root]", false},
		{"a", []string{Everywhere, "root"}, "[reach:all root]", false},
		{Init, nil, "[]", false},
	} {
		r := spawnedAs(row.id, &agboxv1.AgentSpawned{SandboxId: "s", StackRoots: row.roots})
		if fmt.Sprint(r.StackRoots) != row.want || r.Borderless != row.before {
			t.Errorf("%s with %v is within %v, from before: %v", row.id, row.roots, r.StackRoots, r.Borderless)
		}
	}
	moved := Fold(*spawnedAs("a", &agboxv1.AgentSpawned{SandboxId: "s"}), &agboxv1.AgentEvent{
		Sequence: 2, Type: agboxv1.AgentEventType_AGENT_MOVED, Details: &agboxv1.AgentEvent_Moved{Moved: &agboxv1.AgentMoved{SandboxId: "t"}},
	})
	if moved.SandboxID != "t" || moved.World() != "sandbox:s" {
		t.Errorf("one that has moved to %s is within %v", moved.SandboxID, moved.StackRoots)
	}
}

// TestAgentsFromBeforeGetTheBordersThatTheyWouldGet in any order of the records.
func TestAgentsFromBeforeGetTheBordersThatTheyWouldGet(t *testing.T) {
	const own = "agent-"
	spawned := map[string]*agboxv1.AgentSpawned{
		"root":    {Parent: Init, SandboxId: "s"},
		"child":   {Parent: "root", SandboxId: own + "child", Owned: true},
		"deep":    {Parent: "child", SandboxId: own + "deep", Owned: true},
		"guest":   {Parent: Init, SandboxId: own + "deep"},
		"after":   {Parent: "guest", SandboxId: own + "deep", StackRoots: []string{"after"}},
		"lost":    {Parent: "gone", SandboxId: "t"},
		"new":     {Parent: Init, SandboxId: own + "new", Owned: true, StackRoots: []string{"sandbox:u"}},
		"visitor": {Parent: Init, SandboxId: own + "new"},
		"free":    {Parent: Init, SandboxId: own + "free", Owned: true, StackRoots: []string{Everywhere}},
		"beside":  {Parent: Init, SandboxId: own + "free"},
		"below":   {Parent: "free", SandboxId: own + "free"},
	}
	want := map[string]string{
		"root": "[sandbox:s]", "child": "[sandbox:s]", "deep": "[sandbox:s]", "guest": "[sandbox:s]", "after": "[sandbox:s after]",
		"lost": "[sandbox:t]", "new": "[sandbox:u]", "visitor": "[sandbox:u]",
		"free": "[reach:all]", "beside": "[sandbox:agent-free]", "below": "[reach:all]", Init: "[]",
	}
	for seed := range uint64(20) {
		records := []*Record{spawnedAs(Init, new(agboxv1.AgentSpawned))}
		for id, s := range spawned {
			records = append(records, spawnedAs(id, s))
		}
		rand.New(rand.NewPCG(seed, seed)).Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		GiveBorders(records)
		got := make(map[string]string)
		for _, r := range records {
			got[r.ID] = fmt.Sprint(r.StackRoots)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("the borders are\n%v; want\n%v", got, want)
		}
	}
}

// TestAnAdopterGivesItsBorderIfTheParentIsForgotten, and the sandbox where its owner was counts as
// that of the owner.
func TestAnAdopterGivesItsBorderIfTheParentIsForgotten(t *testing.T) {
	elder := spawnedAs("elder", &agboxv1.AgentSpawned{Parent: Init, SandboxId: "s", Owned: true})
	elder.SandboxID, elder.Moves = "s2", []Stay{{SandboxID: "s"}}
	adopted := spawnedAs("adopted", &agboxv1.AgentSpawned{Parent: "gone", SandboxId: "t"})
	adopted.Parent = "elder"
	guest := spawnedAs("guest", &agboxv1.AgentSpawned{Parent: Init, SandboxId: "s2"})
	circle := spawnedAs("circle", &agboxv1.AgentSpawned{Parent: "circle", SandboxId: "u"})
	GiveBorders([]*Record{guest, adopted, circle, elder})
	for _, r := range []*Record{elder, adopted, guest} {
		if r.World() != "sandbox:s" {
			t.Errorf("%s is within %v", r.ID, r.StackRoots)
		}
	}
	if circle.World() != "sandbox:u" {
		t.Errorf("one that is its own parent is within %v", circle.StackRoots)
	}
}
