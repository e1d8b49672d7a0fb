package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

// texts returns the numbers and texts in the inbox of an agent.
func texts(t *testing.T, l *Ledger, id string) (list []string) {
	t.Helper()
	for after, left := uint64(0), 1; left > 0; {
		var page []*agboxv1.AgentMessage
		var err error
		if page, left, err = l.Messages(t.Context(), id, after, 1<<10); err != nil {
			t.Fatal(err)
		}
		for _, m := range page {
			list, after = append(list, fmt.Sprint(m.GetSeq(), " ", m.GetFrom(), " ", m.GetText())), m.GetSeq()
		}
	}
	return list
}

func send(t *testing.T, l *Ledger, to, key, text string) uint64 {
	t.Helper()
	seq, err := l.SendMessage(t.Context(), "init", to, key, text)
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// fill leaves no room for agents in an inbox.
func fill(t *testing.T, l *Ledger, id string) {
	t.Helper()
	for i := range maxInbox {
		if _, err := l.SendMessage(t.Context(), fmt.Sprint("sender-", i%oneAgent), id, "", "x"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMessageStaysUntilItIsAcknowledged(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	send(t, l, "a", "", "one")
	send(t, l, "a", "k", "two")
	if again := send(t, l, "a", "k", "repeated"); again != 2 {
		t.Errorf("a repeated message has number %d; want 2", again)
	}
	send(t, l, "a", "", "three")
	stop()
	l, stop = open(t, dir)
	if got := texts(t, l, "a"); !slices.Equal(got, []string{"1 init one", "2 init two", "3 init three"}) || l.Unread("a") != 3 {
		t.Errorf("after a restart there are %q, and %d unread", got, l.Unread("a"))
	}
	for range 2 {
		if err := l.Acknowledge(t.Context(), "a", 2); err != nil {
			t.Fatal(err)
		}
	}
	if again := send(t, l, "a", "k", "repeated"); again != 2 {
		t.Errorf("a message repeated after its acknowledgement has number %d; want 2", again)
	}
	send(t, l, "a", "", "four")
	if got := texts(t, l, "a"); !slices.Equal(got, []string{"3 init three", "4 init four"}) || l.Unread("a") != 2 {
		t.Errorf("after the acknowledgement there are %q, and %d unread", got, l.Unread("a"))
	}
	if err := l.Acknowledge(t.Context(), "a", 100); err != nil {
		t.Fatal(err)
	}
	stop()
	l, _ = open(t, dir)
	if seq := send(t, l, "a", "", "five"); seq != 5 || l.Unread("a") != 1 {
		t.Errorf("the next message has number %d, and %d are unread; want 5 and 1", seq, l.Unread("a"))
	}
}

func TestAnInboxIsBounded(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, agentOf("b", "", "s"))
	_, err := l.SendMessage(t.Context(), "init", "a", "", strings.Repeat("x", maxMessage+1))
	wantReason(t, err, agboxv1.ErrorReason_INVALID_REQUEST)
	for range maxInboxBytes/maxMessage - 1 {
		send(t, l, "a", "", strings.Repeat("x", maxMessage))
	}
	_, err = l.SendMessage(t.Context(), "init", "a", "", strings.Repeat("x", maxMessage))
	wantReason(t, err, agboxv1.ErrorReason_INBOX_FULL) // the sender counts too
	if err := l.Acknowledge(t.Context(), "a", 1); err != nil {
		t.Fatal(err)
	}
	send(t, l, "a", "", strings.Repeat("x", maxMessage))
	const senders = 8
	errs := make(chan error, senders)
	for range senders {
		go func() {
			for range maxInbox / senders {
				if _, err := l.SendMessage(t.Context(), "init", "b", "", "x"); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range senders {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	_, err = l.SendMessage(t.Context(), "init", "b", "", "one too many")
	wantReason(t, err, agboxv1.ErrorReason_INBOX_FULL)
}

func TestAnAgentThatBecomesIdleWithAMessageIsWoken(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	send(t, l, "a", "", "one")
	if a = pausedBy(t, l, a, forIdle); !a.Pause.Woken {
		t.Error("it sleeps with an unread message")
	}
}

func TestNobodyReadsMessagesToTheDead(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	send(t, l, "a", "", "one")
	emitAgent(t, l, a.Record, agents.Reaped("test"))
	_, err := l.SendMessage(t.Context(), "init", "a", "", "two")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
	_, err = l.SendMessage(t.Context(), "init", "nobody", "", "three")
	wantReason(t, err, agboxv1.ErrorReason_AGENT_NOT_FOUND)
	send(t, l, agents.Init, "", "the operator has an inbox before any agent")
	if _, err := l.DeleteAgent(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := l.DropAgent(t.Context(), "a"); err != nil || len(texts(t, l, "a")) > 0 || l.Unread("a") > 0 {
		t.Errorf("a deleted agent has messages: %v, %v", texts(t, l, "a"), err)
	}
}

// TestWhoFollowsAnInboxIsWokenByEachChange: a message, its acknowledgement and the removal of the
// agent.
func TestWhoFollowsAnInboxIsWokenByEachChange(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a message", func() error { send(t, l, "a", "", "one"); return nil }},
		{"an acknowledgement", func() error { return l.Acknowledge(t.Context(), "a", 1) }},
		{"the removal", func() error {
			emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
				Type: agboxv1.AgentEventType_AGENT_ENDED, State: agboxv1.AgentState_AGENT_STATE_ABORTED,
				Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT}},
			})
			_, err := l.DeleteAgent(t.Context(), "a")
			return err
		}},
	} {
		changed := l.InboxChanged("a")
		select {
		case <-changed:
			t.Fatalf("it has changed before %s", step.name)
		default:
		}
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Errorf("nobody is woken by %s", step.name)
		}
	}
}
