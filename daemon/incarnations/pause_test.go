package incarnations

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// working is a bench whose agent is EXECUTING, and the answers that it gets.
func working(t *testing.T) (*bench, *answers) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	for _, state := range []agboxv1.AgentState{agents.Planning, agents.Executing} {
		b.emit(b.agent(), &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, State: state, Incarnation: 1})
	}
	return b, to
}

// request makes one request and returns its answer, or nil if it stays open.
func (b *bench) request(to *answers, number uint64, op, body string) *guestv1.AnswerRequest {
	b.t.Helper()
	b.ask(b.link, &guestv1.AgentRequest{Number: number, Op: op, Json: []byte(body)})
	if got := b.decided(to); len(got) > 0 {
		return got[0]
	}
	return nil
}

func TestAProgramWaitsForAnApprovalAndTakesTheObservation(t *testing.T) {
	b, to := working(t)
	if got := b.request(to, 1, "pause", `{"reason":"fun"}`); got.GetCode() != "INVALID_REQUEST" {
		t.Errorf("a reason that there is not: %v", got)
	}
	for range 2 { // the second is that of a daemon that does not know of the first
		if got := b.request(to, 2, "pause", `{"reason":"approval","message":"may I?"}`); got != nil {
			t.Fatalf("answered before the decision: %v", got)
		}
	}
	if a := b.agent(); !a.AwaitsApproval() || a.Pause.Message != "may I?" || a.Incarnation.Request != 2 {
		t.Fatalf("%+v", a.Record)
	}
	if got := b.request(to, 3, "resumed", `{"how":"ok","observation":5}`); got.GetCode() != "AGENT_WRONG_STATE" {
		t.Errorf("resumed before the decision: %v", got)
	}
	if _, err := b.Ledger.ApproveAgent(t.Context(), "x", agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED, "go"); err != nil {
		t.Fatal(err)
	}
	got := b.request(to, 2, "pause", `{"reason":"approval"}`)
	var o observation
	if err := json.Unmarshal(got.GetJson(), &o); err != nil || o.Observation == 0 || o.Approval != "APPROVED" || o.Answer != "go" || o.Reason != "APPROVAL" {
		t.Fatalf("%v: %+v, %v", got, o, err)
	}
	if got := b.request(to, 4, "resumed", `{"how":"ok","observation":1}`); got.GetCode() != "OBSERVATION_PENDING" || b.agent().State != agents.Paused {
		t.Errorf("resumed without the observation: %v", got)
	}
	for range 2 {
		if got := b.request(to, 5, "resumed", string(mustJSON(t, map[string]any{"how": "ok", "observation": o.Observation}))); string(got.GetJson()) != `{"phase":"EXECUTING"}` {
			t.Errorf("resumed: %v", got)
		}
	}
	// A daemon that was killed before its answer gets the pause again: it must not pause twice.
	if got := b.request(to, 2, "pause", `{"reason":"approval"}`); string(got.GetJson()) != `{"phase":"EXECUTING"}` || b.agent().State != agents.Executing {
		t.Errorf("a pause that is over: %v", got)
	}
}

func TestAMessageEndsAnIdlePauseAndANewPlanIsPossible(t *testing.T) {
	b, to := working(t)
	if got := b.request(to, 1, "pause", `{"reason":"idle"}`); got != nil {
		t.Fatalf("answered: %v", got)
	}
	if _, err := b.Ledger.SendMessage(t.Context(), agents.Init, "x", "", "work"); err != nil {
		t.Fatal(err)
	}
	var o observation
	got := b.request(to, 1, "pause", `{"reason":"idle"}`)
	if err := json.Unmarshal(got.GetJson(), &o); err != nil || o.Messages != 1 {
		t.Fatalf("%v: %+v, %v", got, o, err)
	}
	var mail struct {
		Messages []struct {
			Kind string
			Body observation
		}
	}
	got = b.request(to, 4, "recv", `{}`)
	if err := json.Unmarshal(got.GetJson(), &mail); err != nil || len(mail.Messages) != 2 {
		t.Fatalf("its inbox: %v, %v", got, err)
	}
	if m := mail.Messages[1]; m.Kind != "OBSERVATION" || m.Body.Observation != o.Observation || m.Body.Messages != 1 {
		t.Errorf("its inbox tells of the pause: %+v", m)
	}
	if got := b.request(to, 2, "resumed", string(mustJSON(t, map[string]any{"how": "replan", "observation": o.Observation}))); string(got.GetJson()) != `{"phase":"PLANNING"}` {
		t.Errorf("a new plan: %v", got)
	}
	if seen := b.see(); agents.Next(b.agent().Record, agents.Seen{Sandbox: agents.SandboxReady, Exec: agents.ExecRunning, Spoke: seen.Spoke}, agents.Rules{ReadyStart: true}, b.agent().StateChangedAt).Event != nil {
		t.Error("it executes before its program has planned")
	}
	// It has not read the message: the next idle pause is over at once.
	if got := b.request(to, 3, "pause", `{"reason":"idle"}`); len(got.GetJson()) == 0 {
		t.Errorf("a pause with a message that waits: %v", got)
	}
}

func TestALongMessageOfAPauseIsCutBetweenCharacters(t *testing.T) {
	b, to := working(t)
	message := strings.Repeat("a", maxText-1) + "é?"
	if got := b.request(to, 1, "pause", string(mustJSON(t, map[string]string{"reason": "approval", "message": message}))); got != nil {
		t.Fatalf("answered before the decision: %v", got)
	}
	if want := message[:maxText-1] + "..."; b.agent().Pause.Message != want {
		t.Errorf("the pause has the message %q", b.agent().Pause.Message)
	}
}

func TestWhatWasDeniedDoesNotGoOnAsItWas(t *testing.T) {
	b, to := working(t)
	b.request(to, 1, "pause", `{"reason":"approval"}`)
	if _, err := b.Ledger.ApproveAgent(t.Context(), "x", agboxv1.AgentApproval_AGENT_APPROVAL_DENIED, ""); err != nil {
		t.Fatal(err)
	}
	id := b.agent().PendingObservation()
	for number, how := range []string{"ok", "replan"} {
		got := b.request(to, uint64(2+number), "resumed", string(mustJSON(t, map[string]any{"how": how, "observation": id})))
		if want := how == "replan"; (got.GetCode() == "") != want {
			t.Errorf("%s after a denial: %v", how, got)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestAPausedAgentIsRefusedWhatActs asks as a program whose supervisor does not know of the pause.
func TestAPausedAgentIsRefusedWhatActs(t *testing.T) {
	r := asking(t, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Children: 2}})
	b, to := r.bench, r.to
	if _, err := b.Ledger.PauseAgent(t.Context(), "x", "wait"); err != nil {
		t.Fatal(err)
	}
	for i, q := range []struct{ op, body, code string }{
		{"spawn", `{"command":["x"]}`, "AGENT_WRONG_STATE"},
		{"kill", `{"agent":"y"}`, "AGENT_WRONG_STATE"},
		{"open", `{"stream":"news"}`, "AGENT_WRONG_STATE"},
		{"children", `{}`, ""},
		{"recv", `{"no_wait":true}`, ""},
	} {
		if got := b.request(to, uint64(i+1), q.op, q.body); got.GetCode() != q.code || got == nil {
			t.Errorf("%s: %v, want the code %q", q.op, got, q.code)
		}
	}
	if n := len(b.Ledger.Children("x")); n > 0 {
		t.Errorf("it has %d children", n)
	}
}

func TestWhatEndsADrainedIncarnation(t *testing.T) {
	const (
		drained = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
		exited  = agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
	)
	spent := ledger.Agent{Record: agents.Record{Progress: &agboxv1.AgentProgress{Total: &agboxv1.AgentUsage{InputTokens: 500_000}}}}
	paused := ledger.Agent{Record: agents.Record{PauseWanted: &agboxv1.AgentPause{}}}
	killed := ledger.Agent{Record: agents.Record{Kill: &agboxv1.AgentKill{}}}
	for _, row := range []struct {
		name     string
		a        ledger.Agent
		code     string
		stopping bool
		want     agboxv1.IncarnationEndKind
	}{
		{"drained", ledger.Agent{}, "EXEC_DRAINED", false, drained},
		{"drained, budget used up", spent, "EXEC_DRAINED", false, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET},
		{"killed while it was drained", killed, "EXEC_DRAINED", false, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED},
		{"stopped from outside", ledger.Agent{}, "SANDBOX_STOPPED_UNDER_EXEC", false, drained},
		{"cancelled by somebody", ledger.Agent{}, "CANCELLED_BY_REQUEST", false, exited},
		{"paused under an old supervisor", paused, "CANCELLED_BY_REQUEST", false, drained},
		{"stopped under an old supervisor", ledger.Agent{}, "CANCELLED_BY_REQUEST", true, drained},
		{"exited while its sandbox is to stop", ledger.Agent{}, "", true, exited},
	} {
		if got := kindOf(row.a, &agboxv1.ExecStatus{ErrorCode: row.code, ExitCode: 137}, journal.Summary{}, row.stopping); got != row.want {
			t.Errorf("%s: %s; want %s", row.name, got, row.want)
		}
	}
}
