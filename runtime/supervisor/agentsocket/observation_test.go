package agentsocket

import (
	"testing"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

func TestAProgramIsReadyOnlyAfterItHasTakenTheObservation(t *testing.T) {
	s, dir := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "agent", Number: 2, Bounds: Bounds{Context: gate.Default}, Phase: journal.Pending, Observation: 7})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	for _, step := range []struct{ request, code string }{
		{`"op":"state","state":"HYDRATING"`, ""},
		{`"op":"state","state":"READY"`, codeObservation},
		{`"op":"observed","observation":6`, ""}, // of an earlier pause
		{`"op":"state","state":"READY"`, codeObservation},
		{`"op":"observed","observation":7`, ""},
		{`"op":"observed","observation":5`, codeReport},
		{`"op":"state","state":"READY"`, ""},
		{`"op":"state","state":"EXECUTING"`, ""},
	} {
		if r := p.ask("{"+step.request+`,"token":%q}`, a.token); r.OK != (step.code == "") || r.Error.Code != step.code {
			t.Errorf("%s: %+v; want %q", step.request, r, step.code)
		}
	}
	if sum := summary(t, dir, "e"); sum.Observation != 7 || sum.Phase != journal.Executing {
		t.Errorf("the journal comes to %+v", sum)
	}
	// A program that need not report that it is ready is refused nothing.
	free := begin(t, s, "f")
	if r := dial(t, free).ask(`{"op":"state","state":"HYDRATING","token":%q}`, free.token); !r.OK {
		t.Errorf("another program: %+v", r)
	}
}
