package server

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
)

// quietLoop and noIncarnations know nothing of the agents that are listed.
type (
	quietLoop      struct{ Loop }
	noIncarnations struct{ Agents }
)

func (quietLoop) AgentTrouble(string) string                { return "" }
func (noIncarnations) Show(ledger.Agent, *agboxv1.Agent)    {}
func (noIncarnations) LastBeat(ledger.Agent) (at time.Time) { return at }

// tribe has a ledger with agents, and the calls that list them.
type tribe struct {
	t     *testing.T
	calls *agentCalls
}

func newTribe(t *testing.T) tribe {
	t.Helper()
	book, _ := newLedger(t)
	for _, id := range []string{"s", "other"} {
		if _, err := book.Create(t.Context(), id, &agboxv1.CreateSpec{Image: "img"}); err != nil {
			t.Fatal(err)
		}
	}
	return tribe{t, &agentCalls{ledger: book, loop: quietLoop{}, incarnations: noIncarnations{}}}
}

func (b tribe) spawn(id, parent, sandboxID string, over bool) {
	b.t.Helper()
	a, err := b.calls.ledger.SpawnAgent(b.t.Context(), ledger.NewAgent{ID: id, Parent: parent, SandboxID: sandboxID, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if err == nil && over {
		_, err = b.calls.ledger.EmitAgent(b.t.Context(), a.Record, agents.Reaped("test"))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b tribe) list(req *agboxv1.ListAgentsRequest) (ids []string) {
	b.t.Helper()
	resp, err := b.calls.ListAgents(b.t.Context(), req)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, a := range resp.GetAgents() {
		ids = append(ids, a.GetAgentId())
	}
	return ids
}

func TestAgentsAreSelected(t *testing.T) {
	b := newTribe(t)
	b.spawn("top", "", "s", false)
	b.spawn("left", "top", "s", false)
	b.spawn("elsewhere", "", "other", false)
	b.spawn("leaf", "left", "other", true)
	b.spawn("right", "top", "s", true)
	for _, row := range []struct {
		req  *agboxv1.ListAgentsRequest
		want []string
	}{
		{&agboxv1.ListAgentsRequest{}, []string{"top", "left", "elsewhere"}},
		{&agboxv1.ListAgentsRequest{All: true}, []string{"top", "left", "elsewhere", "leaf", "right"}},
		{&agboxv1.ListAgentsRequest{SandboxId: "s"}, []string{"top", "left"}},
		{&agboxv1.ListAgentsRequest{SandboxId: "s", All: true}, []string{"top", "left", "right"}},
		{&agboxv1.ListAgentsRequest{Parent: "top"}, []string{"left"}},
		{&agboxv1.ListAgentsRequest{Parent: "top", All: true}, []string{"left", "right"}},
		{&agboxv1.ListAgentsRequest{Parent: agents.Init}, []string{"top", "elsewhere"}},
		{&agboxv1.ListAgentsRequest{Below: "top"}, []string{"left"}},
		{&agboxv1.ListAgentsRequest{Below: "top", All: true}, []string{"left", "leaf", "right"}},
		{&agboxv1.ListAgentsRequest{Below: "top", All: true, SandboxId: "other"}, []string{"leaf"}},
		{&agboxv1.ListAgentsRequest{Below: "top", All: true, Parent: "left"}, []string{"leaf"}},
		{&agboxv1.ListAgentsRequest{Below: agents.Init, All: true}, []string{"top", "left", "elsewhere", "leaf", "right"}},
	} {
		if got := b.list(row.req); !slices.Equal(got, row.want) {
			t.Errorf("%v selects %v, want %v", row.req, got, row.want)
		}
	}
	if _, err := b.calls.ListAgents(t.Context(), &agboxv1.ListAgentsRequest{Below: "nobody"}); err == nil {
		t.Error("agents below one that does not exist are listed")
	}
}

// TestAListOfThoseThatLiveLooksAtNoneThatHasEnded measures what a list allocates: the record of
// an agent takes about 1 KB.
func TestAListOfThoseThatLiveLooksAtNoneThatHasEnded(t *testing.T) {
	b := newTribe(t)
	b.spawn("living", "", "s", false)
	b.spawn("child", "living", "s", false)
	cost := func(req *agboxv1.ListAgentsRequest) (bytes uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			b.list(req)
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / 10
	}
	requests := []*agboxv1.ListAgentsRequest{
		{}, {SandboxId: "s"}, {Parent: "living"}, {Parent: "living", All: true}, {Below: "living", All: true}, {Class: "c"}, {Stack: "crew"},
	}
	var few []uint64
	for _, req := range requests {
		few = append(few, cost(req))
	}
	for i := range 300 {
		b.spawn(fmt.Sprint("ended-", i), "", "s", true)
	}
	for i, req := range requests {
		if many := cost(req); many > 4*few[i]+64<<10 {
			t.Errorf("%v allocates %d bytes beside 300 agents that have ended, and %d beside none", req, many, few[i])
		}
	}
}
