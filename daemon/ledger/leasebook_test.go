package ledger

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
	"github.com/agbox/agbox/store"
)

// crowd adds living agents without events, of which each holds, waits for or died for the
// resource "crowded" in turn. It returns their number. Their positions are above any.
func crowd(tb testing.TB, l *Ledger, like Agent, count int) {
	tb.Helper()
	for i := range count {
		a := like
		a.ID, a.Position = fmt.Sprint("crowd-", i), 1<<40+uint64(i)
		a.Name, a.Incarnation = "", &agents.Incarnation{N: 1, ExecID: a.ID + "-1", SandboxID: a.SandboxID}
		a.LeaseSeq = 3
		switch i % 3 {
		case 0:
			a.Holds = lease.Merge(nil, []lease.Claim{{Resource: "crowded", Mode: lease.Shared}}, 1)
		case 1:
			a.Wants, a.Queued = []lease.Claim{{Resource: "crowded", Mode: lease.Shared}, {Resource: "taken", Mode: lease.Exclusive}}, uint64(i)+1
		case 2:
			a.State, a.Pause = agents.Paused, &agents.Pause{Reason: agboxv1.PauseReason_PAUSE_REASON_CONFLICT}
			a.Wants = []lease.Claim{{Resource: "crowded", Mode: lease.Exclusive}}
		}
		place(l, a)
	}
	taker := like
	taker.ID, taker.Position = "taker", 1<<39
	taker.Holds = lease.Merge(nil, []lease.Claim{{Resource: "taken", Mode: lease.Exclusive}}, 1)
	place(l, taker)
}

func place(l *Ledger, a Agent) {
	l.agents.mu.Lock()
	defer l.agents.mu.Unlock()
	l.agents.putLocked(a)
	l.leases.book.Put(inBook(a))
	l.leases.book.Keep()
}

// leaseTable is what all agents hold and ask for, by a look at all.
func leaseTable(l *Ledger) (table []lease.Party) {
	for _, a := range l.Agents(nil) {
		table = append(table, a.LeaseParty())
	}
	return table
}

// nothingIsLeft fails if the rule, by a look at all agents, would grant something or call one
// that is parked.
func nothingIsLeft(t *testing.T, l *Ledger) {
	t.Helper()
	table := leaseTable(l)
	for _, p := range table {
		if len(p.Wants) == 0 {
			continue
		}
		before := slices.Clone(table)
		for i, q := range before {
			if p.Queued > 0 && q.Queued > p.Queued {
				before[i].Queued = 0 // it comes later
			}
		}
		verdict, _ := lease.Decide(before, p, p.Wants)
		if p.Queued > 0 && verdict == lease.Granted {
			t.Fatalf("%s is to be granted what it waits for: %+v", p.ID, table)
		}
		if a := now(t, l, p.ID); p.Queued == 0 && verdict != lease.Die && a.State == agents.Paused && !a.Pause.Woken {
			t.Fatalf("%s is parked, and the verdict is %v: %+v", p.ID, verdict, table)
		}
	}
}

// BenchmarkLeases is a manifest that is granted and a release, a manifest that waits, and the
// grant that ends the wait, with so many living agents at the resource or elsewhere.
func BenchmarkLeases(b *testing.B) {
	shared := []lease.Claim{{Resource: "crowded", Mode: lease.Shared}}
	for _, at := range []struct {
		what          string
		crowd, others int
	}{{"alone", 0, 0}, {"1000 at the resource", 1000, 0}, {"10000 others", 0, 10_000}} {
		l := fresh(b)
		ready(b, l, "s")
		like := worker(b, l, "old", "")
		worker(b, l, "young", "")
		if at.crowd > 0 {
			crowd(b, l, like, at.crowd)
		}
		for i := range at.others {
			a := like
			a.ID, a.Position = fmt.Sprint("other-", i), 1<<40+uint64(i)
			a.Holds = lease.Merge(nil, []lease.Claim{{Resource: a.ID, Mode: lease.Exclusive}}, 1)
			place(l, a)
		}
		must := func(err error) {
			if err != nil {
				b.Fatal(err)
			}
		}
		b.Run(at.what+"/manifest and release", func(b *testing.B) {
			for b.Loop() {
				a, _ := l.Agent("old")
				a, answer, err := l.AcquireLeases(b.Context(), a.Record, shared, a.PendingObservation())
				if must(err); answer.Verdict != granted {
					b.Fatal(answer)
				}
				_, err = l.ReleaseLeases(b.Context(), a.Record, nil)
				must(err)
			}
		})
		b.Run(at.what+"/wait and grant", func(b *testing.B) {
			for b.Loop() {
				old, _ := l.Agent("old")
				young, _ := l.Agent("young")
				_, _, err := l.AcquireLeases(b.Context(), young.Record, []lease.Claim{{Resource: "solo", Mode: lease.Exclusive}}, 0)
				must(err)
				_, answer, err := l.AcquireLeases(b.Context(), old.Record, []lease.Claim{{Resource: "solo", Mode: lease.Exclusive}}, old.PendingObservation())
				if must(err); answer.Verdict != waits {
					b.Fatal(answer)
				}
				young, _ = l.Agent("young")
				_, err = l.ReleaseLeases(b.Context(), young.Record, nil)
				must(err)
				old, _ = l.Agent("old")
				old, err = l.EmitAgent(b.Context(), old.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: agents.Executing, Incarnation: 1, Observation: old.PendingObservation()})
				must(err)
				_, err = l.ReleaseLeases(b.Context(), old.Record, nil)
				must(err)
			}
		})
	}
}

func TestLeasesOfATransactionThatIsRolledBackAreAsBefore(t *testing.T) {
	l := workers(t, "old", "young", "youngest")
	acquires(t, l, "young", granted, "db")
	acquires(t, l, "old", waits, "db")
	refused := errors.New("refused")
	err := l.store.Update(t.Context(), func(tx *store.Tx) error {
		before := l.agentIn(tx, "young")
		after, err := l.withinAgent(tx, "young", func(t *agentTxn) error {
			return t.release(func(lease.Hold) bool { return true }, "")
		})
		if err = errors.Join(err, l.followLeases(tx, before, after)); err != nil || len(l.agentIn(tx, "old").Holds) != 1 {
			t.Errorf("a release in a transaction grants %v, %v", l.agentIn(tx, "old").Holds, err)
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if answer := acquires(t, l, "youngest", dies, "db"); !slices.Equal(answer.Blockers, []string{"old", "young"}) {
		t.Errorf("it died because of %v; want old and young", answer.Blockers)
	}
	ends(t, l, "young")
	if old := now(t, l, "old"); !lease.Covers(old.Holds, exclusive("db")) {
		t.Errorf("the one that waits holds %v", old.Holds)
	}
}

// TestOneThatDiedAndIsPausedAgainIsCalled: while it was woken it was to ask by itself.
func TestOneThatDiedAndIsPausedAgainIsCalled(t *testing.T) {
	l := workers(t, "oldest", "middle", "young")
	acquires(t, l, "oldest", granted, "db")
	acquires(t, l, "middle", dies, "db", "file:/a")
	emitAgent(t, l, now(t, l, "middle").Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{}}})
	ends(t, l, "oldest")
	acquires(t, l, "young", granted, "db")
	if middle := now(t, l, "middle"); middle.Queued != 0 {
		t.Fatalf("one that asks by itself is queued at %d", middle.Queued)
	}
	emitAgent(t, l, now(t, l, "middle").Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PAUSED,
		Details: &agboxv1.AgentEvent_Pause{Pause: &agboxv1.AgentPause{Reason: agboxv1.PauseReason_PAUSE_REASON_REQUEST}}})
	if middle := now(t, l, "middle"); middle.Queued == 0 || middle.Pause.Woken {
		t.Errorf("it is at place %d in the queue: %+v", middle.Queued, middle.Pause)
	}
	nothingIsLeft(t, l)
}

// TestARequestLooksAtTheAgentsThatItConcerns counts the records that leases are decided with.
func TestARequestLooksAtTheAgentsThatItConcerns(t *testing.T) {
	looked := func(many int) uint64 {
		l := workers(t, "old", "young")
		crowd(t, l, now(t, l, "old"), many)
		before := l.agents.copied.Load()
		shared := []lease.Claim{{Resource: "crowded", Mode: lease.Shared}}
		if _, answer, err := l.AcquireLeases(t.Context(), now(t, l, "old").Record, shared, 0); err != nil || answer.Verdict != granted {
			t.Fatalf("a shared lease: %v, %v", answer, err)
		}
		if _, err := l.ReleaseLeases(t.Context(), now(t, l, "old").Record, nil); err != nil {
			t.Fatal(err)
		}
		acquires(t, l, "young", granted, "solo")
		acquires(t, l, "old", waits, "solo")
		ends(t, l, "young") // grants
		if !lease.Covers(now(t, l, "old").Holds, exclusive("solo")) {
			t.Fatal("the one that waits is not granted what the other has released")
		}
		return l.agents.copied.Load() - before
	}
	if few, many := looked(3), looked(900); many > few {
		t.Errorf("leases are decided with %d records beside 900 agents at a resource, and with %d beside 3", many, few)
	}
}
