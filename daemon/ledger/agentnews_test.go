package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// crashAgain begins the next incarnation of an agent and lets it crash.
func crashAgain(t *testing.T, l *Ledger, id, message string) Agent {
	t.Helper()
	a, _ := l.Agent(id)
	a = emitAgent(t, l, a.Record, begun(a.Incarnations+1))
	endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExitCode: 1, ErrorMessage: message})
	a, _ = l.Agent(id)
	return emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
}

// heard are the kinds of the messages in an inbox, and about whom they are.
func heard(t *testing.T, l *Ledger, id string) (list []string) {
	t.Helper()
	for _, m := range messages(t, l, id) {
		list = append(list, strings.TrimPrefix(m.GetKind().String(), "MESSAGE_KIND_")+" "+m.GetFrom())
	}
	return list
}

// TestParentAndInitHearOnceOfEachChange: what decides about a child may be decided again, also by
// the next daemon.
func TestParentAndInitHearOnceOfEachChange(t *testing.T) {
	dead := func(t *testing.T, l *Ledger) {
		for n := range 5 {
			crashAgain(t, l, "c", strings.Repeat("x", n+1))
			if n < 4 {
				if err := l.Acknowledge(t.Context(), "p", ^uint64(0)); err != nil {
					t.Fatal(err)
				}
				if err := l.Acknowledge(t.Context(), agents.Init, ^uint64(0)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, row := range []struct {
		name         string
		tells        *agboxv1.AgentTells
		do           func(*testing.T, *Ledger)
		parent, init []string
	}{
		{"a crash", nil, func(t *testing.T, l *Ledger) { crashAgain(t, l, "c", "no") }, []string{"CRASH c"}, []string{"CRASH c"}},
		{"a wait for an approval", nil, func(t *testing.T, l *Ledger) {
			if _, err := l.PauseAgent(t.Context(), "c", "May I?"); err != nil {
				t.Fatal(err)
			}
		}, []string{"APPROVAL c"}, []string{"APPROVAL c"}},
		{"a drain", nil, func(t *testing.T, l *Ledger) {
			if _, err := l.RequestDrain(t.Context(), "c"); err != nil {
				t.Fatal(err)
			}
			settleAgent(t, l, "c")
		}, []string{"DRAIN c"}, []string{"DRAIN c"}},
		{"a dead letter", nil, dead, []string{"DEAD_LETTER c"}, []string{"DEAD_LETTER c"}},
		{"a budget that is used up", nil, func(t *testing.T, l *Ledger) {
			c, _ := l.Agent("c")
			c = emitAgent(t, l, c.Record, begun(1))
			endIncarnation(t, l, c, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET})
			settleAgent(t, l, "c")
		}, []string{"BUDGET c"}, []string{"BUDGET c"}},
		{"an end", nil, func(t *testing.T, l *Ledger) { end(t, l, "c", agents.Completed) }, []string{"CHILD c"}, nil},
		{"a crash that only init is told of", &agboxv1.AgentTells{Parent: []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_NONE}},
			func(t *testing.T, l *Ledger) { crashAgain(t, l, "c", "no") }, nil, []string{"CRASH c"}},
		{"a dead letter that nobody chose", &agboxv1.AgentTells{Parent: []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_CRASH}, Init: []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_NONE}},
			dead, []string{"CHILD c"}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			l, stop := open(t, dir)
			ready(t, l, "s")
			spawn(t, l, agentOf("p", "", "s"))
			n := child("c", "p")
			n.Spec.Tells = row.tells
			spawn(t, l, n)
			row.do(t, l)
			for _, when := range []string{"before", "after"} {
				if parent, init := heard(t, l, "p"), heard(t, l, agents.Init); !slices.Equal(parent, row.parent) || !slices.Equal(init, row.init) {
					t.Errorf("%s a restart the parent has heard %q, and init %q", when, parent, init)
				}
				c, _ := l.Agent("c")
				if !c.Over() { // a decision from an earlier record
					emitAgent(t, l, agents.Record{ID: "c"}, agents.Reaped("late"))
				}
				stop()
				l, stop = open(t, dir)
			}
			stop()
		})
	}
}

// TestABreakerIsToldToAllWhoseAgentsHaveCrashed: once when it opens and once when it closes.
func TestABreakerIsToldToAllWhoseAgentsHaveCrashed(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	for _, id := range []string{"p", "q", "other"} {
		spawn(t, l, agentOf(id, "", "s"))
	}
	of := func(id, parent string) Agent {
		n := classed(id)
		n.Parent, n.Spec.Breaker.Cooldown = parent, durationpb.New(1)
		return spawn(t, l, n)
	}
	for id, parent := range map[string]string{"a": "p", "b": "p"} {
		of(id, parent)
		crashAgain(t, l, id, "no")
	}
	of("c", "q")
	crashAgain(t, l, "c", "no")
	of("canary", "other")
	breaker := func(id string) (list []string) {
		for _, m := range messages(t, l, id) {
			if m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_BREAKER {
				var news kinNews
				if err := json.Unmarshal([]byte(m.GetBody()), &news); err != nil || news.Class != "c" || news.State == openWord && news.Until == nil {
					t.Errorf("the body is %s", m.GetBody())
				}
				list = append(list, fmt.Sprint(m.GetFrom(), " ", news.State, " ", news.Earlier))
			}
		}
		return list
	}
	check := func(when string, want map[string][]string) {
		t.Helper()
		for id, list := range want {
			if got := breaker(id); !slices.Equal(got, list) {
				t.Errorf("%s, %s was told %q; want %q", when, id, got, list)
			}
		}
	}
	opened := []string{"init BREAKER_OPEN 0"}
	check("after the third crash", map[string][]string{"p": opened, "q": opened, "other": nil, agents.Init: opened})
	stop()
	l, stop = open(t, dir)
	defer stop()
	check("after a restart", map[string][]string{"p": opened, "q": opened, "other": nil, agents.Init: opened})
	if err := l.Acknowledge(t.Context(), "q", ^uint64(0)); err != nil {
		t.Fatal(err)
	}
	canary, _ := l.Agent("canary")
	canary = emitAgent(t, l, canary.Record, begun(1))
	endIncarnation(t, l, canary, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED})
	end(t, l, "canary", agents.Completed)
	closed := []string{"init BREAKER_CLOSED 1"} // instead of the word that it is open
	check("after the canary", map[string][]string{"p": closed, "q": {"init BREAKER_CLOSED 0"}, "other": {"init BREAKER_CLOSED 0"}, agents.Init: closed})
}

// TestABreakerIsToldToThoseWhomTheAgentsTell: the agents that have crashed say who hears of it.
func TestABreakerIsToldToThoseWhomTheAgentsTell(t *testing.T) {
	none := []agboxv1.AgentNews{agboxv1.AgentNews_AGENT_NEWS_NONE}
	for _, row := range []struct {
		parent     string
		tells      *agboxv1.AgentTells
		told, init bool
	}{
		{"p", nil, true, true},
		{"p", &agboxv1.AgentTells{Parent: none}, false, true},
		{"p", &agboxv1.AgentTells{Init: none}, true, false},
		{"p", &agboxv1.AgentTells{Parent: none, Init: none}, false, false},
		{agents.Init, &agboxv1.AgentTells{Init: none}, false, false},
		{agents.Init, &agboxv1.AgentTells{Parent: none}, false, true},
	} {
		l := fresh(t)
		ready(t, l, "s")
		spawn(t, l, agentOf("p", "", "s"))
		for n := range 3 {
			a := classed(fmt.Sprint("a", n))
			a.Parent, a.Spec.Tells = row.parent, row.tells
			spawn(t, l, a)
			crashAgain(t, l, a.ID, "no")
		}
		if root, _ := l.Agent(agents.Init); !root.Breakers["c"].Open() {
			t.Fatalf("the breaker is closed")
		}
		for id, want := range map[string]bool{"p": row.told, agents.Init: row.init} {
			if got := slices.Contains(heard(t, l, id), "BREAKER "+agents.Init); got != want {
				t.Errorf("agents of %s that tell %v: %s was told: %t", row.parent, row.tells, id, got)
			}
		}
	}
}

// TestACrashLoopFillsNoInbox: of what the recipient has not read, only the newest crash of an agent
// counts. The wait of another child is not lost among them.
func TestACrashLoopFillsNoInbox(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	spawn(t, l, agentOf("p", "", "s"))
	spawn(t, l, child("asks", "p"))
	n := child("c", "p")
	n.Spec.Retry = &agboxv1.AgentRetry{Attempts: 100, Delays: []*durationpb.Duration{durationpb.New(0)}}
	spawn(t, l, n)
	if _, err := l.PauseAgent(t.Context(), "asks", "May I?"); err != nil {
		t.Fatal(err)
	}
	const crashes = 60
	for n := range crashes {
		crashAgain(t, l, "c", strings.Repeat("x", n+1))
		if n == crashes/2 {
			stop()
			l, stop = open(t, dir)
		}
	}
	defer stop()
	for _, id := range []string{"p", agents.Init} {
		if got := heard(t, l, id); !slices.Equal(got, []string{"APPROVAL asks", "CRASH c"}) || l.Unread(id) != 2 {
			t.Fatalf("%s has %q, of which %d are counted", id, got, l.Unread(id))
		}
		var news kinNews
		if err := json.Unmarshal([]byte(messages(t, l, id)[1].GetBody()), &news); err != nil || news.Crashes != crashes || news.Earlier != crashes-1 || news.Until == nil {
			t.Errorf("%s is told %+v, %v", id, news, err)
		}
	}
}

// TestTheNewestWordOutlivesADigest: of the kinds of an agent that lives, and of a breaker.
func TestTheNewestWordOutlivesADigest(t *testing.T) {
	l := fresh(t)
	ready(t, l, "s")
	spawn(t, l, agentOf("p", "", "s"))
	spawn(t, l, child("asks", "p"))
	if _, err := l.PauseAgent(t.Context(), "asks", "May I?"); err != nil {
		t.Fatal(err)
	}
	put := func(kind agboxv1.MessageKind, from, key string, news kinNews) {
		t.Helper()
		err := l.store.Update(t.Context(), func(tx *store.Tx) error {
			return l.deliverNews(tx, "p", &agboxv1.AgentMessage{Kind: kind, From: from, Key: key}, news)
		})
		if n := l.Unread("p"); err != nil || n > maxOwn+2 {
			t.Fatalf("it has %d unread messages, %v", n, err)
		}
	}
	put(agboxv1.MessageKind_MESSAGE_KIND_BREAKER, agents.Init, "1", kinNews{Class: "c", State: openWord})
	put(agboxv1.MessageKind_MESSAGE_KIND_BREAKER, agents.Init, "2", kinNews{Class: "d", State: openWord})
	const gone = 2*maxOwn + 3*ownRoom
	for n := range gone {
		put(agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER, fmt.Sprint("g", n), "x", kinNews{State: "DEAD_LETTER"})
	}
	var kept []string
	sum := 0
	for after, left := uint64(0), 1; left > 0; {
		list, next, err := l.Messages(t.Context(), "p", after, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			after = m.GetSeq()
			var body digest
			switch {
			case isDigest(m) && json.Unmarshal([]byte(m.GetBody()), &body) == nil:
				sum += body.States["DEAD_LETTER"]
				if len(body.States) != 1 {
					t.Errorf("the digest has %+v", body)
				}
			case m.GetKind() == agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER:
				sum++
			default:
				kept = append(kept, fmt.Sprint(m.GetKind(), " ", subject(m)))
			}
		}
		left = next
	}
	if sum != gone {
		t.Errorf("it was told of %d ends; want %d", sum, gone)
	}
	if want := []string{"MESSAGE_KIND_APPROVAL asks", "MESSAGE_KIND_BREAKER class:c", "MESSAGE_KIND_BREAKER class:d"}; !slices.Equal(kept, want) {
		t.Errorf("kept are %q; want %q", kept, want)
	}
}

// TestAFullInboxOfInitIsNotReadForEachEnd: an end allocates little more than with an empty one.
func TestAFullInboxOfInitIsNotReadForEachEnd(t *testing.T) {
	l := fresh(t)
	told := 0
	tell := func(n int) {
		err := l.store.Update(t.Context(), func(tx *store.Tx) (err error) {
			for ; n > 0 && err == nil; n-- {
				told++
				err = l.deliverNews(tx, agents.Init, &agboxv1.AgentMessage{
					Kind: agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER, From: fmt.Sprint("g", told), Key: "x",
				}, kinNews{State: "DEAD_LETTER"})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	empty := testing.AllocsPerRun(20, func() { tell(1) })
	tell(maxOwn - told)
	if full := testing.AllocsPerRun(20, func() { tell(1) }); full > 4*empty {
		t.Errorf("a message to a full inbox allocates %.0f times, and to an empty one %.0f times", full, empty)
	}
	if n := l.Unread(agents.Init); n != maxOwn {
		t.Errorf("%d messages are unread, want %d", n, maxOwn)
	}
}
