package ledger

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAnAgentIsAskedOnceToEndAndAcknowledges(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	send(t, l, "a", "", "before")
	for range 2 {
		a, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_GRACEFUL})
		if err != nil || !a.EndsItself() {
			t.Fatalf("%v, %v", a.Kill, err)
		}
	}
	send(t, l, "a", "", "after")
	list := messages(t, l, "a")
	if len(list) != 3 || list[1].GetKind() != agboxv1.MessageKind_MESSAGE_KIND_SIGTERM {
		t.Fatalf("its inbox is %v", list)
	}
	for _, m := range list {
		if err := l.Acknowledge(t.Context(), "a", m.GetSeq()); err != nil {
			t.Fatal(err)
		}
		if got, err := l.Acknowledged(t.Context(), "a"); err != nil || got != (m.GetSeq() >= list[1].GetSeq()) {
			t.Errorf("after the acknowledgement of %d: %v, %v", m.GetSeq(), got, err)
		}
	}
	a, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_TERMINATE})
	if err != nil || a.EndsItself() {
		t.Errorf("a stronger kill: %v, %v", a.Kill, err)
	}
}

// TestAMessageWithTheKeyOfTheRequestToEndDoesNotHideIt: keys of agbox's own messages are a name
// space of their own.
func TestAMessageWithTheKeyOfTheRequestToEndDoesNotHideIt(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	if _, err := l.SendMessage(t.Context(), "a", "a", "SIGTERM", "mine"); err != nil {
		t.Fatal(err)
	}
	if err := l.Acknowledge(t.Context(), "a", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_GRACEFUL}); err != nil {
		t.Fatal(err)
	}
	list := messages(t, l, "a")
	if len(list) != 1 || list[0].GetKind() != agboxv1.MessageKind_MESSAGE_KIND_SIGTERM {
		t.Fatalf("its inbox is %v", list)
	}
	if got, err := l.Acknowledged(t.Context(), "a"); err != nil || got {
		t.Errorf("before its acknowledgement: %v, %v", got, err)
	}
}
