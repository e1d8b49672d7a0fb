package incarnations

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/agents/gate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents"
)

func TestResourcesHaveNamesOfThreeKinds(t *testing.T) {
	for name, good := range map[string]bool{
		"file:/workspace/main.go": true, "service:db": true, "port-8080": true, "api.example.com:443/v1": true, "ß": true,
		"": false, "file:main.go": false, "file:/a/../b": false, "file:/a/": false, "file:": false, "service:": false, "service:A B": false,
		"two words": false, "a\x00": false, "\xff": false, strings.Repeat("x", maxResource): true, strings.Repeat("x", maxResource+1): false,
	} {
		if why := badResource(name); (why == "") != good {
			t.Errorf("%.40q is good: %v (%s)", name, why == "", why)
		}
	}
}

// working makes the agent of the bench EXECUTING.
func (b *bench) working() {
	b.t.Helper()
	for _, state := range []agboxv1.AgentState{agents.Planning, agents.Executing} {
		ev := &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: state, Incarnation: b.agent().Incarnation.N}
		if _, err := b.ledger.EmitAgent(b.t.Context(), b.agent().Record, ev); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestAManifestIsAnsweredAndReleased(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	b.working()
	asks := func(op, body string) *guestv1.AnswerRequest {
		b.ask(b.link, &guestv1.AgentRequest{Number: 1, Op: op, Json: []byte(body)})
		got := b.decided(to)
		if len(got) != 1 {
			t.Fatalf("%s %s is answered with %v", op, body, got)
		}
		return got[0]
	}
	for _, bad := range []string{`{}`, `{"manifest":[]}`, `{"manifest":[{"resource":"a b"}]}`, `{"manifest":[{"resource":"a","mode":"mine"}]}`, `{"manifest":7}`} {
		if got := asks("acquire", bad); got.GetCode() != "INVALID_REQUEST" {
			t.Errorf("%s is answered with %v", bad, got)
		}
	}
	got := asks("acquire", `{"manifest":[{"resource":"db","mode":"shared"},{"resource":"file:/a"}],"wait":true}`)
	for _, want := range []string{`{"verdict":"GRANTED","phase":"EXECUTING","leases":[{"resource":"db","mode":"shared","fence":`, `{"resource":"file:/a","mode":"exclusive","fence":`} {
		if !strings.Contains(string(got.GetJson()), want) {
			t.Errorf("the answer is %s; want in it %s", got.GetJson(), want)
		}
	}
	if got := asks("release", `{"resources":["db"]}`); strings.Contains(string(got.GetJson()), "db") || len(b.agent().Holds) != 1 {
		t.Errorf("after the release it holds %v, answer %s", b.agent().Holds, got.GetJson())
	}
	if got := asks("release", `{}`); string(got.GetJson()) != `{"leases":[]}` {
		t.Errorf("after the second release the answer is %s", got.GetJson())
	}
}

func TestARequestOfAnAgentThatWasJustWokenStaysOpenUntilItGoesOn(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	b.working()
	for _, ev := range []*agboxv1.AgentEvent{
		{Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: agboxv1.PauseReason_PAUSE_REASON_CONFLICT}}},
		{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{}}},
	} {
		if _, err := b.ledger.EmitAgent(t.Context(), b.agent().Record, ev); err != nil {
			t.Fatal(err)
		}
	}
	q := &guestv1.AgentRequest{Number: 1, Op: "acquire", Json: []byte(`{"manifest":[{"resource":"db"}]}`)}
	b.ask(b.link, q)
	if got := b.decided(to); len(got) != 0 {
		t.Errorf("a program that says nothing is told %v", got)
	}
	b.rows = 1 // it has reported something, so it must take the observation itself
	b.ask(b.link, q)
	if got := b.decided(to); len(got) != 1 || got[0].GetCode() != "OBSERVATION_PENDING" {
		t.Errorf("a program that reports is told %v", got)
	}
}

// TestAPausedAgentIsToldToTakeTheObservationBeforeItAsks pauses an agent from outside, which
// then asks for something new.
func TestAPausedAgentIsToldToTakeTheObservationBeforeItAsks(t *testing.T) {
	b, to := working(t)
	b.rows = 1 // its program reports
	ask := func(number uint64, observation uint64, wait bool) *guestv1.AnswerRequest {
		return b.request(to, number, "acquire", string(mustJSON(t, map[string]any{"manifest": []gate.Lease{{Resource: "db"}}, "wait": wait, "observation": observation})))
	}
	if _, err := b.Ledger.PauseAgent(t.Context(), "x", ""); err != nil {
		t.Fatal(err)
	}
	if got := ask(1, 0, false); got.GetCode() != "OBSERVATION_PENDING" || !strings.Contains(got.GetMessage(), "is WAITING_FOR_APPROVAL") {
		t.Errorf("before the decision: %v", got)
	}
	if got := ask(2, 0, true); got != nil {
		t.Errorf("before the decision, one that waits is told %v", got)
	}
	if _, err := b.Ledger.ApproveAgent(t.Context(), "x", agboxv1.AgentApproval_AGENT_APPROVAL_DENIED, ""); err != nil {
		t.Fatal(err)
	}
	if got := ask(3, 0, false); got.GetCode() != "OBSERVATION_PENDING" {
		t.Errorf("without the observation: %v", got)
	}
	if got := ask(2, 0, true); !strings.Contains(string(got.GetJson()), `"verdict":"OBSERVE"`) {
		t.Errorf("one that waits is told %v", got)
	}
	if got := ask(4, b.agent().PendingObservation(), true); !strings.Contains(string(got.GetJson()), `"verdict":"GRANTED","phase":"EXECUTING"`) {
		t.Errorf("with the observation of the denial: %v", got)
	}
}

// TestWhatIsGrantedDuringAnApprovalIsNotWorkedWith pauses an agent for an approval while it
// waits for leases, which it then gets.
func TestWhatIsGrantedDuringAnApprovalIsNotWorkedWith(t *testing.T) {
	b, to := working(t)
	b.rows = 1
	ask := func(number uint64, wait bool) *guestv1.AnswerRequest {
		return b.request(to, number, "acquire", string(mustJSON(t, map[string]any{"manifest": []gate.Lease{{Resource: "db"}}, "wait": wait})))
	}
	if got := ask(1, false); !strings.Contains(string(got.GetJson()), "GRANTED") {
		t.Fatal(got)
	}
	if _, err := b.Ledger.PauseAgent(t.Context(), "x", ""); err != nil {
		t.Fatal(err)
	}
	if got := ask(2, false); got.GetCode() != "OBSERVATION_PENDING" {
		t.Errorf("a paused agent that asks for what it holds is told %v", got)
	}
	if got := ask(3, true); got != nil {
		t.Errorf("one that waits is told %v", got)
	}
	if _, err := b.Ledger.ApproveAgent(t.Context(), "x", agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED, ""); err != nil {
		t.Fatal(err)
	}
	if got := ask(3, true); !strings.Contains(string(got.GetJson()), `"verdict":"OBSERVE"`) {
		t.Errorf("after the decision it is told %v", got)
	}
}
