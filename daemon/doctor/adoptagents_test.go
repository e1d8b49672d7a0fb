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
	o.Agents = func() []ledger.AdoptedAgent {
		return []ledger.AdoptedAgent{
			{ID: "x", Name: "one", SandboxID: "a", Incarnation: 2, Attempt: 2, Spec: spec},
			{ID: "y", Name: "one", SandboxID: "b", Incarnation: 1, Attempt: 1, Spec: spec},
			{ID: "z", Name: "two", SandboxID: "gone", Incarnation: 1, Attempt: 1, Spec: spec},
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
		want := []string{"x ADOPT AGENT a" + done, "y ADOPT AGENT b" + done, "z LEAVE AGENT gone"}
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
}
