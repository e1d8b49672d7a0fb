package agentsocket

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// acts are all that a program can ask for, written by hand: each op, but gate by the kind of the call.
func acts() []string {
	return []string{
		"hello", "state", "phase", "beat", "usage", "step", "turn", "checkpoint", "context", "call", "say", "error", "send", "observed", "done",
		"health", "drained", "spawn", "wait", "kill", "children", "acquire", "release", "recv", "open", "close", "pause", "resumed",
		journal.Tool, journal.LLM, journal.Network,
	}
}

// inState returns an incarnation whose agent is in a state, as far as its supervisor knows.
func inState(s *Server, state string) *incarnation {
	in := &incarnation{server: s, sum: journal.Start(), phased: true, bounds: Bounds{Reading: []string{"look"}}}
	switch in.sum.Phase = state; state {
	case statePaused:
		in.sum.Phase, in.pause.Pause = journal.Executing, Pause{Mark: 7, Message: "A user wants to look."}
	case stateAcquiring:
		in.sum.Phase = journal.Executing
		in.requests.open = []*openRequest{{Request: Request{Op: "acquire"}}}
	}
	return in
}

// may is the table once more, written by hand from the protocol of suspension: an agent that is
// halted does nothing but what it needs to go on or to end, and says how it is.
func may(act, state string) bool {
	halted := []string{
		"hello", "state", "beat", "usage", "step", "turn", "context", "checkpoint", "say", "error", "observed", "done", "health", "drained", "call",
		"recv", "wait", "children", "acquire", "release", "close", "pause", "resumed",
	}
	changes := []string{"tool", "network", "spawn", "kill"}
	switch state {
	case "PAUSED":
		return slices.Contains(halted, act)
	case "PLANNING", "ACQUIRING":
		return !slices.Contains(changes, act)
	}
	return true
}

func TestWhatAProgramMayDoInEachState(t *testing.T) {
	s, _ := server(t)
	for _, act := range acts() {
		if !gate.HasVerdict(act) {
			t.Errorf("%s has no row in gate.Ops", act)
		}
		for _, state := range gate.States {
			no := inState(s, state).mayAct(act, "change", time.Now())
			if allowed := no == nil; allowed != may(act, state) {
				t.Errorf("%s in %s is allowed: %v", act, state, allowed)
			}
			if no == nil {
				continue
			}
			if want := state; no.Code != want || !strings.HasSuffix(no.Message, ".") {
				t.Errorf("%s in %s is refused with %+v", act, state, no)
			}
		}
	}
	for _, state := range []string{journal.Planning, stateAcquiring} {
		for _, act := range []string{journal.Tool, journal.Network} {
			if no := inState(s, state).mayAct(act, "look", time.Now()); no != nil {
				t.Errorf("a tool that only reads, in %s: %v", state, no)
			}
		}
	}
	for _, row := range gate.Ops {
		if row.Name != journal.Gate && !slices.Contains(acts(), row.Name) {
			t.Errorf("there is no op %s", row.Name)
		}
	}
}

// TestNothingHappensBeforeTheObservationIsTaken begins in a pause.
func TestNothingHappensBeforeTheObservationIsTaken(t *testing.T) {
	s, _ := server(t)
	a, err := s.Begin(Boot{ExecID: "e", AgentID: "a", Number: 2, Phase: journal.Pending, Observation: 5, Bounds: Bounds{Context: gate.Default}})
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, a)
	for _, act := range []string{`"op":"gate","tool":"x"`, `"op":"gate","kind":"llm"`, `"op":"call","call":"begin","kind":"tool","name":"x"`, `"op":"send","to":"parent","text":"x"`, `"op":"spawn"`, `"op":"phase","state":"PLANNING"`} {
		if r := p.ask("{"+act+`,"token":%q}`, a.token); r.Error.Code != codeObservation {
			t.Errorf("%s: %+v", act, r)
		}
	}
	if r := p.ask(`{"op":"observed","observation":5,"token":%q}`, a.token); !r.OK {
		t.Fatalf("%+v", r)
	}
	if r := p.ask(`{"op":"gate","tool":"x","token":%q}`, a.token); !r.OK {
		t.Errorf("with the observation: %+v", r)
	}
}

// TestAProgramThatKnowsNoPhasesNoticesNone goes on from a denial by its next call.
func TestAProgramThatKnowsNoPhasesNoticesNone(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	call := `{"op":"gate","tool":"Bash","token":%q}`
	if r := p.ask(call, a.token); !r.OK {
		t.Fatalf("%+v", r)
	}
	s.Pause("e", Pause{Mark: 8, Observation: []byte(`{"observation":8}`), Phase: journal.Planning})
	if r := p.ask(call, a.token); r.Error.Code != codePaused {
		t.Fatalf("%+v", r)
	}
	if r := p.ask(call, a.token); !r.OK {
		t.Errorf("after the observation: %+v", r)
	}
	if r := p.ask(`{"op":"phase","state":"EXECUTING","token":%q}`, a.token); !r.OK { // now it does
		t.Fatalf("%+v", r)
	}
	p.ask(`{"op":"phase","state":"PLANNING","token":%q}`, a.token)
	if r := p.ask(call, a.token); r.Error.Code != journal.Planning {
		t.Errorf("a tool in PLANNING: %+v", r)
	}
}

// TestAnAgentThatGotNoLeasesIsPausedAtOnce answers a request for leases, and tells of the pause
// later, as the daemon does.
func TestAnAgentThatGotNoLeasesIsPausedAtOnce(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	d, p := follow(t, s), dial(t, a)
	p.send(`{"op":"acquire","token":%q}`, a.token)
	d.told(1)
	other := dial(t, a)
	if r := other.ask(`{"op":"gate","tool":"x","token":%q}`, a.token); r.Error.Code != stateAcquiring {
		t.Errorf("while it asks: %+v", r)
	}
	s.Answer("e", 1, Decision{Result: []byte(`{"verdict":"DIE","phase":"PAUSED"}`)})
	p.answer()
	for range 2 {
		if r := p.ask(`{"op":"gate","tool":"x","token":%q}`, a.token); r.Error.Code != codePaused {
			t.Errorf("after DIE: %+v", r)
		}
		s.Pause("e", Pause{Mark: 4})
	}
	p.send(`{"op":"acquire","token":%q}`, a.token)
	d.told(1)
	s.Answer("e", 2, Decision{Result: []byte(`{"verdict":"GRANTED","phase":"EXECUTING"}`)})
	p.answer()
	if r := p.ask(`{"op":"gate","tool":"x","token":%q}`, a.token); !r.OK {
		t.Errorf("after GRANTED: %+v", r)
	}
}

func TestTheTableOfActsInTheDocumentIsTrue(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| op | %s |\n|---|%s\n", strings.Join(gate.States[:], " | "), strings.Repeat("---|", len(gate.States)))
	names := make(map[gate.Verdicts][]string)
	var rows []gate.Verdicts
	for _, op := range gate.Ops {
		if names[op.In] == nil {
			rows = append(rows, op.In)
		}
		names[op.In] = append(names[op.In], op.Name)
	}
	for _, row := range rows {
		if row == (gate.Verdicts{}) { // gate, which is by the kind of its call
			continue
		}
		fmt.Fprintf(&b, "| `%s` |", strings.Join(names[row], "`, `"))
		for _, v := range row {
			fmt.Fprintf(&b, " %s |", map[gate.Verdict]string{gate.No: "no", gate.Yes: "yes", gate.Reads: "reads"}[v])
		}
		b.WriteString("\n")
	}
	if !strings.Contains(string(raw), b.String()) {
		t.Errorf("docs/agents.md does not have this table:\n%s", b.String())
	}
	for _, tool := range gate.Reading {
		if !strings.Contains(string(raw), tool) {
			t.Errorf("docs/agents.md does not name the tool %s", tool)
		}
	}
}
