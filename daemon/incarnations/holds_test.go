package incarnations

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestTheHoldOfAClientLingers(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD})
	now := time.Now()
	fresh := func() { // another daemon
		b.restart()
		b.now = func() time.Time { return now }
		b.holds = newHolds(now)
	}
	fresh()
	const holder, linger = "client:c", 30 * time.Second
	if _, err := b.Ledger.OpenHold(t.Context(), "x", holder, linger); err != nil {
		t.Fatal(err)
	}
	want := func(when, lost string, due time.Duration) {
		t.Helper()
		got, at := b.LostHolder(b.agent())
		if got != lost || at.IsZero() != (due == 0) || due > 0 && (at.Sub(now)-due).Abs() > 2*time.Second {
			t.Errorf("%s: %q is lost, the next one in %v; want %q, %v", when, got, at.Sub(now), lost, due)
		}
	}
	pass := func(d time.Duration) { now = now.Add(d) }
	want("before the client is connected", "", linger)
	release, second := b.Hold("x", holder), b.Hold("x", holder)
	pass(time.Hour)
	want("connected", "", 0)
	release()
	want("with another connection", "", 0)
	second()
	want("disconnected", "", linger)
	pass(20 * time.Second)
	fresh()
	want("after a restart", "", linger)
	pass(linger - time.Second)
	third := b.Hold("x", holder)
	pass(time.Minute)
	want("connected again", "", 0)
	third()
	pass(linger)
	want("lost", holder, 0)
	fourth := b.Hold("x", holder) // just before the end is recorded
	if err := b.EndHold(t.Context(), b.agent(), holder); err != nil || !b.agent().HeldBy(holder) {
		t.Errorf("the hold of a connected client has ended: %v", err)
	}
	fourth()
	pass(linger)
	if err := b.EndHold(t.Context(), b.agent(), holder); err != nil || b.agent().HeldBy(holder) || len(b.holds.lost) != 0 {
		t.Errorf("the hold goes on: %v, %v", b.agent().Holders, err)
	}
	b.Hold("x", holder)() // of a client that has closed its hold meanwhile
	if len(b.holds.lost)+len(b.holds.connected) != 0 {
		t.Errorf("%v and %v stay", b.holds.lost, b.holds.connected)
	}
}

func TestTheHoldOfAnAgentEndsWithIt(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD})
	if _, err := b.Ledger.OpenHold(t.Context(), "x", "agent:gone", 0); err != nil {
		t.Fatal(err)
	}
	lost, due := b.LostHolder(b.agent())
	if lost != "agent:gone" || !due.IsZero() {
		t.Fatalf("%q is lost, %v", lost, due)
	}
	if err := b.EndHold(t.Context(), b.agent(), lost); err != nil || !b.agent().Unheld() {
		t.Errorf("the holders are %v, %v", b.agent().Holders, err)
	}
}

// TestAnInboxHoldsAnAgentUntilAllIsAcknowledged: the hold ends by itself, and not while another
// message is on its way.
func TestAnInboxHoldsAnAgentUntilAllIsAcknowledged(t *testing.T) {
	b := newBench(t, &agboxv1.AgentSpec{Lifetime: agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, WakeOn: agboxv1.AgentWakeOn_AGENT_WAKE_ON_MESSAGE})
	seq, err := b.Ledger.SendMessage(t.Context(), "init", "x", "", "hello")
	if err != nil || !b.agent().HeldBy(agents.InboxHolder) {
		t.Fatalf("it is held by %v, %v", b.agent().Holders, err)
	}
	if lost, _ := b.LostHolder(b.agent()); lost != "" {
		t.Errorf("%s is lost before the message is acknowledged", lost)
	}
	if err := b.Ledger.Acknowledge(t.Context(), "x", seq); err != nil {
		t.Fatal(err)
	}
	lost, due := b.LostHolder(b.agent())
	if lost != agents.InboxHolder || !due.IsZero() {
		t.Fatalf("%q is lost, the next one at %v", lost, due)
	}
	if _, err := b.Ledger.SendMessage(t.Context(), "init", "x", "", "another one"); err != nil {
		t.Fatal(err)
	}
	if err := b.EndHold(t.Context(), b.agent(), lost); err != nil || b.agent().Unheld() {
		t.Errorf("a message does not hold it: %v", err)
	}
	if err := b.Ledger.Acknowledge(t.Context(), "x", seq+1); err != nil {
		t.Fatal(err)
	}
	if err := b.EndHold(t.Context(), b.agent(), lost); err != nil || !b.agent().Unheld() {
		t.Errorf("it is held by %v, %v", b.agent().Holders, err)
	}
}
