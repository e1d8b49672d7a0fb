package ledger

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// signalTo delivers a message about another agent.
func signalTo(t *testing.T, l *Ledger, to string) {
	t.Helper()
	err := l.store.Update(t.Context(), func(tx *store.Tx) error {
		return l.deliver(tx, to, &agboxv1.AgentMessage{Kind: agboxv1.MessageKind_MESSAGE_KIND_CHILD, From: "c"})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tries lists the tries of the messages in an inbox, and whether they were given up. It leaves
// out that of an observation.
func tries(t *testing.T, l *Ledger, id string) (list []string) {
	t.Helper()
	messages, _, err := l.Messages(t.Context(), id, 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION {
			continue
		}
		list = append(list, fmt.Sprint(m.GetTries(), m.GetGivenUp()))
	}
	return list
}

func TestASignalIsTriedThreeTimesAndThenKept(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	now := time.Now().Add(-3 * time.Hour)
	l.now = func() time.Time { return now }
	repeat := func(later time.Duration, want ...string) {
		t.Helper()
		now = now.Add(later)
		if err := l.RepeatSignals(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if got := tries(t, l, "a"); !slices.Equal(got, want) {
			t.Errorf("the tries are %v; want %v", got, want)
		}
	}
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	signalTo(t, l, "a")
	send(t, l, "a", "", "x")
	repeat(time.Hour, "1 false", "0 false") // nothing runs that could have acknowledged it
	a = emitAgent(t, l, a.Record, begun(1))
	repeat(agents.SignalWait-1, "1 false", "0 false")
	pausedBy(t, l, a, forIdle)
	repeat(1, "2 false", "0 false")
	if a, _ := l.Agent("a"); !a.Pause.Woken {
		t.Error("the second try woke nobody")
	}
	signalTo(t, l, "a")
	repeat(agents.SignalWait, "3 false", "0 false", "2 false")
	stop()
	l, _ = open(t, dir)
	l.now = func() time.Time { return now }
	now = time.Now()
	repeat(agents.SignalWait-20*time.Second, "3 false", "0 false", "2 false") // a daemon that was away must not give up
	repeat(20*time.Second, "3 true", "0 false", "3 false")
	repeat(agents.SignalWait, "3 true", "0 false", "3 true")
	repeat(agents.SignalWait, "3 true", "0 false", "3 true")
	types := history(t, l, "a")
	failed := slices.DeleteFunc(types, func(typ agboxv1.AgentEventType) bool { return typ != agboxv1.AgentEventType_AGENT_SIGNAL_FAILED })
	if len(failed) != 2 || !l.Signal("a").IsZero() {
		t.Errorf("given up: %v; the next try after %v", failed, l.Signal("a"))
	}
}

func TestAnAcknowledgedSignalIsNotTriedAgain(t *testing.T) {
	l := fresh(t)
	now := time.Now()
	l.now = func() time.Time { return now }
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, begun(1))
	signalTo(t, l, "a")
	first := now
	now = now.Add(time.Second)
	signalTo(t, l, "a")
	if got := l.Signal("a"); !got.Equal(first) {
		t.Errorf("the oldest try is at %v; want %v", got, first)
	}
	if err := l.Acknowledge(t.Context(), "a", 1); err != nil {
		t.Fatal(err)
	}
	if got := l.Signal("a"); !got.Equal(now) {
		t.Errorf("the oldest try is at %v; want %v", got, now)
	}
	if err := l.Acknowledge(t.Context(), "a", 2); err != nil || !l.Signal("a").IsZero() {
		t.Errorf("%v, and the oldest try is at %v", err, l.Signal("a"))
	}
}

// observations returns the numbers of the messages in an inbox that say what changed during a
// pause.
func observations(t *testing.T, l *Ledger, id string) (list []uint64) {
	t.Helper()
	all, _, err := l.Messages(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_OBSERVATION {
			list = append(list, m.GetSeq())
		}
	}
	return list
}

// TestTheInboxTellsOfThePauseUntilTheAgentGoesOn follows one agent through pauses with and
// without a running program.
func TestTheInboxTellsOfThePauseUntilTheAgentGoesOn(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	a := spawn(t, l, agentOf("a", "", "s"))
	emitAgent(t, l, a.Record, begun(1))
	want := func(when string, seqs ...uint64) {
		t.Helper()
		got := observations(t, l, "a")
		if len(got) != len(seqs) || len(got) > 0 && got[0] != seqs[0] || l.Observes("a") != (len(seqs) > 0) {
			t.Errorf("%s the inbox has %d; want %d", when, got, seqs)
		}
		if n := l.Unread("a"); n != 0 {
			t.Errorf("%s %d messages are unread", when, n)
		}
	}
	approve := func() Agent {
		t.Helper()
		if _, err := l.PauseAgent(t.Context(), "a", "look first"); err != nil {
			t.Fatal(err)
		}
		a, err := l.ApproveAgent(t.Context(), "a", approved, "")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	resume := func(a Agent, number uint64) {
		t.Helper()
		if _, err := l.ResumeOnRequest(t.Context(), "a", Asked{a.Incarnation.N, number}, a.PendingObservation(), false); err != nil {
			t.Fatal(err)
		}
	}
	want("before a pause")
	a = approve()
	want("after the approval", 1)
	stop()
	l, stop = open(t, dir)
	defer stop()
	want("after a restart", 1)
	resume(a, 1)
	want("when it goes on")

	a = approve()
	want("after the second pause", 2)
	if err := l.Acknowledge(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	want("once it is acknowledged")
	resume(a, 2)

	a = approve()
	want("after the third pause", 3)
	a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED}},
	})
	want("without a program")
	a = emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
	if a = emitAgent(t, l, a.Record, begun(2)); a.PendingObservation() == 0 {
		t.Fatalf("the next incarnation has nothing to take: %+v", a.Record)
	}
	want("for the next incarnation", 4)
	resume(a, 1)
	want("at the end")
}
