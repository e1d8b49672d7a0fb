package incarnations

import (
	"errors"
	"slices"
	"testing"

	"github.com/agbox/agbox/daemon/guests/links"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// TestAProgramKnowsWhatItsChildrenHaveOfTheBudget spawns a child and ends it. The program must
// know of the child's part before it has the answer, also if that could not be told at once.
func TestAProgramKnowsWhatItsChildrenHaveOfTheBudget(t *testing.T) {
	tokens := uint64(1000)
	r := asking(t, &agboxv1.AgentSpec{Budget: &agboxv1.AgentBudget{InputTokens: &tokens, CostUsd: "0"}, MaySpawn: &agboxv1.AgentMaySpawn{Children: 8}})
	tell := func() {
		t.Helper()
		if !r.see().Untold {
			t.Fatal("nobody tells the program")
		}
		if err := r.TellChildren(t.Context(), r.agent()); err != nil {
			t.Fatal(err)
		}
		if r.see().Untold {
			t.Fatal("it is told again and again")
		}
	}
	want := func(allotted ...uint64) {
		t.Helper()
		if !slices.Equal(r.to.allotted, allotted) {
			t.Errorf("the program was told of %d tokens; want %d", r.to.allotted, allotted)
		}
	}
	if r.tell(); r.see().Untold {
		t.Error("there is nothing to tell")
	}
	const ask = `{"command":["x"],"key":"k","budget":{"input_tokens":600,"cost_usd":"0"}}`
	r.to.err = errors.New("the link is broken")
	r.ask(r.link, &guestv1.AgentRequest{Number: 1, Op: "spawn", Json: []byte(ask)})
	if err := r.Answer(t.Context(), r.agent()); err == nil || len(r.to.sent) > 0 {
		t.Fatalf("the program has an answer, but was not told: %v, %v", r.to.sent, err)
	}
	r.to.err = nil
	made, code := r.again()
	r.want("a child", code, "")
	want(600)
	if r.see().Untold {
		t.Error("it was told with the answer")
	}
	r.uses(made["agent_id"].(string), 50)
	r.end(made["agent_id"].(string))
	tell()
	want(600, 50)

	// A new daemon, over a new link, hears what the supervisor knows.
	r.restart()
	r.execs = r.to
	r.link = &links.Link{SandboxID: "a"}
	r.Told(r.link, &guestv1.IncarnationNews{ExecId: "e", ChildrenInputTokens: 600})
	tell()
	want(600, 50, 50)
	if want := []uint64{0, 50, 50}; !slices.Equal(r.to.spent, want) {
		t.Errorf("it was told that %d tokens do not come back; want %d", r.to.spent, want)
	}
}
