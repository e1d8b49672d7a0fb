package doctor

import (
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

func TestAgentsAreAdoptedWithTheirSandboxes(t *testing.T) {
	engine, install, _ := populated(t)
	lose(t, install)
	o := offline(engine, install)
	spec := &agboxv1.AgentSpec{Command: []string{"true"}}
	held := &agboxv1.AgentSpec{Command: []string{"true"}, Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD}
	o.Agents = func() []ledger.AdoptedAgent {
		return []ledger.AdoptedAgent{
			{ID: "x", Name: "one", SandboxID: "a", Incarnation: 2, Attempt: 2, Spec: spec},
			{ID: "y", Name: "one", SandboxID: "b", Incarnation: 1, Attempt: 1, Spec: spec},
			{ID: "z", Name: "two", SandboxID: "gone", Incarnation: 1, Attempt: 1, Spec: spec},
			{ID: "w", Parent: "x", Depth: 2, SandboxID: "b", After: []string{"y"}, Work: []byte("do it"), Spec: held},
			{ID: "v", Parent: "gone", Depth: 2, SandboxID: "b", Incarnation: 1, Attempt: 1, Spec: held},
		}
	}
	for _, fix := range []bool{false, true} {
		var got []string
		for _, f := range examineOffline(t, o, fix).GetFindings() {
			if f.GetKind() == agboxv1.DoctorKind_DOCTOR_KIND_AGENT {
				got = append(got, f.GetId()+" "+short(f))
			}
		}
		done := ""
		if fix {
			done = " done"
		}
		want := []string{"x ADOPT AGENT a" + done, "y ADOPT AGENT b" + done, "z LEAVE AGENT gone", "w ADOPT AGENT b" + done, "v ADOPT AGENT b" + done}
		if !slices.Equal(got, want) {
			t.Errorf("the findings are %q; want %q", got, want)
		}
	}
	l := begin(t, engine, install.Data)
	x, _ := l.ledger.Agent("x")
	y, _ := l.ledger.Agent("y")
	_, z := l.ledger.Agent("z")
	if x.Incarnations != 2 || x.Crashes != 1 || x.SandboxID != "a" || y.Name != "" || y.Incarnations != 1 || z {
		t.Errorf("the agents are %+v, %+v, %v", x.Record, y.Record, z)
	}
	w, _ := l.ledger.Agent("w")
	work, err := l.ledger.AgentWork(t.Context(), "w")
	if w.Parent != "x" || w.Depth != 2 || w.Incarnations != 0 || w.Incarnation != nil || w.Word() != "PENDING" || !w.HeldBy("agent:x") || string(work) != "do it" || err != nil {
		t.Errorf("the agent that had not begun is %+v with %q, %v", w.Record, work, err)
	}
	if followers := l.ledger.Followers("y"); len(followers) != 1 || followers[0].ID != "w" {
		t.Errorf("agent y is followed by %v", followers)
	}
}
