package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

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
