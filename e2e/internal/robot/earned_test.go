package robot

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// script makes events, a minute after each other.
type script struct{ events []*agboxv1.AgentEvent }

func (s *script) add(ev *agboxv1.AgentEvent) *script {
	ev.Position = uint64(len(s.events) + 1)
	ev.OccurredAt = timestamppb.New(time.Unix(0, 0).Add(time.Duration(len(s.events)) * time.Minute))
	s.events = append(s.events, ev)
	return s
}

func (s *script) spawned(ids ...string) *script {
	for _, id := range ids {
		s.add(&agboxv1.AgentEvent{AgentId: id, Type: agboxv1.AgentEventType_AGENT_SPAWNED, Details: &agboxv1.AgentEvent_Spawned{Spawned: &agboxv1.AgentSpawned{Class: "c"}}})
	}
	return s
}

// ends ends an incarnation, and answers that: attempt is the number of crashes, 0 if it is none.
func (s *script) ends(id string, incarnation, attempt uint32) *script {
	s.add(&agboxv1.AgentEvent{AgentId: id, Incarnation: incarnation, Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST}}})
	return s.add(&agboxv1.AgentEvent{AgentId: id, Type: agboxv1.AgentEventType_AGENT_PAUSED, Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Attempt: attempt}}})
}

func (s *script) over(id string, state agboxv1.AgentState, code string) *script {
	return s.add(&agboxv1.AgentEvent{AgentId: id, Type: agboxv1.AgentEventType_AGENT_ENDED, State: state, Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{ErrorCode: code}}})
}

func (s *script) breaker(typ agboxv1.AgentEventType, agent string) *script {
	return s.add(&agboxv1.AgentEvent{AgentId: Root, Type: typ, Details: &agboxv1.AgentEvent_Breaker{Breaker: &agboxv1.AgentBreaker{Class: "c", AgentId: agent}}})
}

func TestOnlyWhatWasDoneIsEarned(t *testing.T) {
	const (
		opened = agboxv1.AgentEventType_AGENT_BREAKER_OPENED
		canary = agboxv1.AgentEventType_AGENT_BREAKER_CANARY
		dead   = agboxv1.AgentState_AGENT_STATE_DEAD_LETTER
		failed = agboxv1.AgentState_AGENT_STATE_FAILED
	)
	one, two, three := Deed{"a", 1}, Deed{"b", 1}, Deed{"d", 1}
	abd := func() *script { return new(script).spawned("a", "b", "d") }
	six := abd()
	for n := range uint32(5) {
		six.ends("a", n+1, 0)
	}
	for _, row := range []struct {
		what  string
		s     *script
		deeds []Deed
		// want is a part of the problem, "" for none.
		want string
	}{
		{"a crash of a program that was killed", abd().ends("a", 1, 1), []Deed{one}, ""},
		{"one of another incarnation", abd().ends("a", 2, 1), []Deed{one}, "nobody killed it"},
		{"a loss", abd().ends("a", 1, 0), nil, ""},
		{"a loss that is counted", abd().ends("a", 1, 1), nil, "nobody killed it"},
		{"the sixth loss in a row", six.ends("a", 6, 1), nil, ""},
		{"a breaker after three agents", abd().ends("a", 1, 1).ends("b", 1, 1).ends("d", 1, 1).breaker(opened, "d"), []Deed{one, two, three}, ""},
		{"a breaker after two agents", abd().ends("a", 1, 1).ends("b", 1, 1).ends("a", 2, 2).breaker(opened, "a"), []Deed{one, two, {"a", 2}}, "and it takes 3"},
		{"a breaker after a crash too long ago", abd().ends("a", 1, 1).spawned("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12").ends("b", 1, 1).ends("d", 1, 1).breaker(opened, "d"), []Deed{one, two, three}, "and it takes 3"},
		{"a breaker after a canary", abd().breaker(canary, "a").ends("a", 1, 1).breaker(opened, "a"), []Deed{one}, ""},
		{"a dead letter after three crashes", abd().ends("a", 1, 1).ends("a", 2, 2).ends("a", 3, 3).over("a", dead, ""), []Deed{one, {"a", 2}, {"a", 3}}, ""},
		{"a dead letter after two", abd().ends("a", 1, 1).ends("a", 2, 2).over("a", dead, ""), []Deed{one, {"a", 2}}, "dead letter after 2"},
		{"a refusal without an open breaker", abd().over("a", failed, "CLASS_BREAKER_OPEN"), nil, "has failed"},
		{"another failure", abd().over("a", failed, "SANDBOX_NOT_READY"), nil, "has failed"},
	} {
		deeds := make(map[Deed]bool)
		for _, d := range row.deeds {
			deeds[d] = true
		}
		got := judge(row.s.events, deeds, nil, nil).Problems
		if all := strings.Join(got, "; "); row.want == "" && len(got) > 0 || !strings.Contains(all, row.want) || row.want != "" && len(got) == 0 {
			t.Errorf("%s: the problems are %q, want %q", row.what, got, row.want)
		}
	}
}
