package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// messages returns the inbox of an agent.
func messages(t *testing.T, l *Ledger, id string) []*agboxv1.AgentMessage {
	t.Helper()
	list, _, err := l.Messages(t.Context(), id, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestTheEndOfAChildIsToldToItsParentOnce(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	n := child("b", "a")
	n.Name, n.Spec.Title = "worker", "Fix it"
	b := spawn(t, l, n)
	end(t, l, "b", agents.Failed)
	emitAgent(t, l, b.Record, agents.Reaped("decided before the end"))
	stop()
	l, _ = open(t, dir)
	got := messages(t, l, "a")
	if len(got) != 1 {
		t.Fatalf("the parent was told %v", got)
	}
	m, now := got[0], &kinNews{}
	if m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_CHILD || m.GetFrom() != "b" || m.GetText() != "[SIGCHLD] worker is FAILED. test" {
		t.Errorf("the message is %v", m)
	}
	if err := json.Unmarshal([]byte(m.GetBody()), now); err != nil || *now != (kinNews{Agent: "b", Name: "worker", Title: "Fix it", State: "FAILED", Message: "test"}) {
		t.Errorf("its body is %+v, %v", now, err)
	}
	end(t, l, "a", agents.Completed)
	if got := texts(t, l, agents.Init); !slices.Equal(got, []string{"1 a [SIGCHLD] a is COMPLETED. test"}) {
		t.Errorf("init was told %q", got)
	}
}

func TestAnAdoptionIsToldToTheNewParentOnce(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	spawn(t, l, child("b", "a"))
	spawn(t, l, child("c", "b"))
	spawn(t, l, child("d", "b"))
	end(t, l, "b", agents.Failed)
	c, _ := l.Agent("c")
	for range 2 {
		emitAgent(t, l, c.Record, next(l, "c").Event)
	}
	end(t, l, "d", agents.Completed) // before its round
	want := []string{
		"1 b [SIGCHLD] b is FAILED. test",
		"2 c [ADOPTED] c is your child now: its parent b has ended. It is PENDING.",
		"3 d [ADOPTED] d is your child now: its parent b has ended. It is COMPLETED.",
		"4 d [SIGCHLD] d is COMPLETED. test",
	}
	if got := texts(t, l, "a"); !slices.Equal(got, want) {
		t.Errorf("the ancestor was told\n%s", strings.Join(got, "\n"))
	}
	if kind := messages(t, l, "a")[1].GetKind(); kind != agboxv1.MessageKind_MESSAGE_KIND_ADOPTED {
		t.Errorf("an adoption is told as %v", kind)
	}
}

func TestAnIdleChildIsToldToItsParent(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	pausedBy(t, l, spawn(t, l, agentOf("a", "", "s")), forIdle)
	pausedBy(t, l, spawn(t, l, child("b", "a")), forIdle)
	if got := texts(t, l, "a"); !slices.Equal(got, []string{"1 b [SIGCHLD] b is IDLE."}) {
		t.Errorf("the parent was told %q", got)
	}
	if a, _ := l.Agent("a"); !a.Pause.Woken {
		t.Error("the parent, which is IDLE too, is not woken")
	}
	send(t, l, "b", "", "work")
	b, _ := l.Agent("b")
	pausedBy(t, l, b, forIdle) // with a message that it has not read
	if got := texts(t, l, "a"); len(got) != 1 {
		t.Errorf("the parent was told of a pause that ended at once: %q", got)
	}
}

func TestTheInboxOfTheRootIsBounded(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	if _, err := l.SendMessage(t.Context(), "x", agents.Init, "", "kept"); err != nil {
		t.Fatal(err)
	}
	for i := range maxOwn + 2 {
		id := fmt.Sprint("a", i)
		spawn(t, l, agentOf(id, "", "s"))
		end(t, l, id, agents.Completed)
	}
	got := texts(t, l, agents.Init)
	if len(got) != maxOwn+1 || l.Unread(agents.Init) != len(got) {
		t.Fatalf("init has %d messages, of which %d are counted", len(got), l.Unread(agents.Init))
	}
	if got[0] != "1 x kept" || !strings.Contains(got[1], "a2 is COMPLETED") {
		t.Errorf("its oldest messages are %q", got[:2])
	}
}

// TestTheOwnMessagesOfAnInboxAreBoundedAndNoEndIsLost: an agent spawns children for weeks and
// reads nothing.
func TestTheOwnMessagesOfAnInboxAreBoundedAndNoEndIsLost(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("a", "", "s"))
	if _, err := l.SendMessage(t.Context(), "x", "a", "", "kept"); err != nil {
		t.Fatal(err)
	}
	pausedBy(t, l, spawn(t, l, child("lives", "a")), forIdle)
	if _, err := l.RequestKill(t.Context(), "a", &agboxv1.AgentKill{Mode: agboxv1.KillMode_KILL_MODE_GRACEFUL}); err != nil {
		t.Fatal(err)
	}
	const children = maxOwn + 3*ownRoom
	for i := range children {
		state := []string{"COMPLETED", "FAILED"}[i%2] // of an agent that is removed by now
		err := l.store.Update(t.Context(), func(tx *store.Tx) error {
			return l.deliver(tx, "a", &agboxv1.AgentMessage{
				Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: fmt.Sprint("c", i), Key: fmt.Sprint(i), Body: fmt.Sprintf(`{"state":%q}`, state),
			})
		})
		if n := l.Unread("a"); err != nil || n > maxOwn+1 { // and the text
			t.Fatalf("it has %d unread messages, %v", n, err)
		}
	}
	check := func() {
		t.Helper()
		told := make(map[string]int)
		others := 0
		for after, left := uint64(0), 1; left > 0; {
			list, next, err := l.Messages(t.Context(), "a", after, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range list {
				after = m.GetSeq()
				var news struct {
					State  string
					States map[string]int
					Agents []string
				}
				if m.GetBody() != "" && json.Unmarshal([]byte(m.GetBody()), &news) != nil {
					t.Fatalf("the body is %s", m.GetBody())
				}
				if news.State == "" && news.States == nil {
					others++
					continue
				}
				told[news.State]++
				for state, n := range news.States {
					told[state] += n
				}
				if news.States != nil && (len(news.Agents) != maxDigested || !strings.Contains(m.GetText(), " COMPLETED, ")) {
					t.Errorf("put together are %v", m)
				}
			}
			left = next
		}
		if delete(told, ""); !maps.Equal(told, map[string]int{"COMPLETED": children / 2, "FAILED": children / 2, "IDLE": 1}) || others != 2 {
			t.Errorf("it was told of %v, and has %d others", told, others)
		}
	}
	check()
	unread := l.Unread("a")
	stop()
	l, _ = open(t, dir)
	if l.Unread("a") != unread {
		t.Errorf("after a restart there are %d unread, before there were %d", l.Unread("a"), unread)
	}
	check()
}
