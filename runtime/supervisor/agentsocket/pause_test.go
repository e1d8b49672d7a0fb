package agentsocket

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

func TestACallIsRefusedWhileTheAgentIsPaused(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	calls := []string{`"op":"gate","tool":"Bash"`, `"op":"gate","kind":"llm"`, `"op":"call","call":"begin","kind":"tool","name":"x"`, `"op":"call","call":"begin","kind":"llm"`, `"op":"call","call":"begin","kind":"network"`}
	if !s.Pause("e", Pause{Mark: 7, Message: "A user wants to look first."}) || s.Pause("none", Pause{Mark: 7}) {
		t.Fatal("who runs is told, and nobody else")
	}
	for _, call := range calls {
		r := p.ask("{"+call+`,"token":%q}`, a.token)
		if r.Error.Code != codePaused || !strings.Contains(r.Error.Message, "A user wants to look first.") || !r.Paused {
			t.Errorf("%s of a paused agent: %+v", call, r)
		}
	}
	for _, report := range []string{`"op":"say","text":"x"`} {
		if r := p.ask("{"+report+`,"token":%q}`, a.token); !r.OK || !r.Paused {
			t.Errorf("%s of a paused agent: %+v", report, r)
		}
	}
	s.Pause("e", Pause{Mark: 8, Observation: []byte(`{"observation":8}`), Phase: journal.Planning})
	if r := p.ask("{"+calls[0]+`,"token":%q}`, a.token); r.Error.Code != codePaused || !strings.Contains(r.Error.Message, `meanwhile: {"observation":8}`) || r.Paused {
		t.Errorf("the first call of an agent that was woken: %+v", r)
	}
	for _, call := range calls {
		if r := p.ask("{"+call+`,"token":%q}`, a.token); !r.OK {
			t.Errorf("%s of an agent that goes on: %+v", call, r)
		}
	}
	if sum := summary(t, dir, "e"); sum.Observation != 8 || sum.Phase != journal.Planning {
		t.Errorf("the journal comes to %+v", sum)
	}
}

// A program that got the observation by a request says how it goes on before it acts.
func TestAProgramActsOnceItHasSaidHowItGoesOn(t *testing.T) {
	for result, allowed := range map[string]bool{
		`{"observation":8}`: false,
		`{"verdict":"OBSERVE","observation":{"observation":8}}`:  false,
		`{"phase":"EXECUTING"}`:                                  true,
		`{"observation":7}`:                                      false, // of an earlier pause
		`{"phase":"PAUSED","verdict":"WAIT","leases":[{"x":1}]}`: false,
		`{"children":[]}`:                                        false,
	} {
		s, _ := server(t)
		a := begin(t, s, "e")
		p := dial(t, a)
		s.Pause("e", Pause{Mark: 8, Observation: []byte(`{}`), Phase: journal.Executing})
		s.mu.Lock()
		in := s.byToken[a.token]
		s.mu.Unlock()
		in.take(observed(json.RawMessage(result)))
		if r := p.ask(`{"op":"gate","tool":"Bash","token":%q}`, a.token); r.OK != allowed {
			t.Errorf("after %s a call gets %+v", result, r)
		}
	}
}

// A program gets the answer to a request in a goroutine of its own, which may be late.
func TestAPauseAfterAnAnswerIsNotTakenWithIt(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	d, p := follow(t, s), dial(t, a)
	for mark := uint64(1); mark <= 100; mark++ {
		p.send(`{"op":"release","token":%q}`, a.token)
		d.told(1)
		if !s.Answer("e", mark, Decision{Result: []byte(`{"phase":"EXECUTING"}`)}) {
			t.Fatal("nobody waits for the answer")
		}
		s.Pause("e", Pause{Mark: mark})
		p.answer()
		if r := p.ask(`{"op":"gate","tool":"Bash","token":%q}`, a.token); r.Error.Code != codePaused {
			t.Fatalf("pause %d, which was told after the answer: %+v", mark, r)
		}
	}
}

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
