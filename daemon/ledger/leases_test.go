package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
)

// worker makes an agent whose incarnation works.
func worker(t testing.TB, l *Ledger, id, parent string) Agent {
	t.Helper()
	n := agentOf(id, "", "s")
	n.Parent = parent
	a := spawn(t, l, n)
	ev := begun(1)
	ev.GetBegun().ExecId = agents.ExecID(id, 1)
	a = emitAgent(t, l, a.Record, ev)
	for _, state := range []agboxv1.AgentState{agents.Planning, agents.Executing} {
		a = emitAgent(t, l, a.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, Incarnation: 1, State: state})
	}
	return a
}

// workers makes a ledger with working agents, oldest first.
func workers(t *testing.T, ids ...string) *Ledger {
	l := fresh(t)
	ready(t, l, "s")
	for _, id := range ids {
		worker(t, l, id, "")
	}
	return l
}

func now(t *testing.T, l *Ledger, id string) Agent {
	t.Helper()
	a, ok := l.Agent(id)
	if !ok {
		t.Fatalf("there is no agent %s", id)
	}
	return a
}

func exclusive(names ...string) (manifest []lease.Claim) {
	for _, name := range names {
		manifest = append(manifest, lease.Claim{Resource: name, Mode: lease.Exclusive})
	}
	return manifest
}

// acquires asks for resources and checks the verdict.
func acquires(t *testing.T, l *Ledger, id string, want agboxv1.LeaseVerdict, names ...string) LeaseAnswer {
	t.Helper()
	_, answer, err := l.AcquireLeases(t.Context(), now(t, l, id).Record, exclusive(names...), now(t, l, id).PendingObservation())
	if err != nil || answer.Verdict != want {
		t.Fatalf("%s asks for %v: %v, %v; want %v", id, names, answer, err, want)
	}
	return answer
}

// ends ends the incarnation of an agent that has reported success, and the agent.
func ends(t *testing.T, l *Ledger, id string) {
	t.Helper()
	a := emitAgent(t, l, now(t, l, id).Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: 1,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{}}})
	emitAgent(t, l, a.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_ENDED, State: agents.Completed,
		Details: &agboxv1.AgentEvent_Done{Done: &agboxv1.AgentDone{}}})
}

// leaseStory returns the events of an agent about leases and pauses, from the newest manifest
// on, with their positions.
func leaseStory(t *testing.T, l *Ledger, id string) (names []string) {
	t.Helper()
	events, _, _, err := l.AgentEvents(t.Context(), id, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.GetType() == agboxv1.AgentEventType_AGENT_MANIFEST {
			names = nil
		}
		names = append(names, strings.TrimPrefix(ev.GetType().String(), "AGENT_"))
	}
	return names
}

func TestTheEndOfAHolderIsTheGrantOfTheOneThatWaits(t *testing.T) {
	l := workers(t, "old", "young")
	acquires(t, l, "young", granted, "db", "file:/a")
	acquires(t, l, "old", waits, "db")
	acquires(t, l, "old", waits, "db") // repeated
	if old := now(t, l, "old"); old.Word() != "PAUSED" || old.Pause.Message != "It waits for young, which holds db." {
		t.Errorf("the one that waits is %s: %+v", old.Word(), old.Pause)
	}
	var called []string
	l.NotifyAgents(func(id string) { called = append(called, id) })
	ends(t, l, "young")
	old := now(t, l, "old")
	if got := leaseStory(t, l, "old"); !slices.Equal(got, []string{"MANIFEST", "CONFLICT", "GRANTED", "WOKEN"}) || !old.Pause.Woken || len(old.Holds) != 1 {
		t.Errorf("it has %v, and holds %v", got, old.Holds)
	}
	if !slices.Contains(called, "old") {
		t.Error("nobody looks at the agent that got its leases")
	}
	acquires(t, l, "old", granted, "db") // without another event
	if got := leaseStory(t, l, "old"); len(got) != 4 {
		t.Errorf("asking for what it holds adds events: %v", got)
	}
	if over := now(t, l, "young"); len(over.Holds) > 0 {
		t.Errorf("an agent that is over holds %v", over.Holds)
	}
}

func TestTheYoungerDiesAndIsWokenToAskAgain(t *testing.T) {
	l := workers(t, "old", "young")
	acquires(t, l, "young", granted, "file:/a")
	acquires(t, l, "old", granted, "db")
	acquires(t, l, "old", waits, "db", "file:/a") // the whole manifest
	answer := acquires(t, l, "young", dies, "db")
	if !slices.Equal(answer.Blockers, []string{"old"}) {
		t.Errorf("it died because of %v; want old", answer.Blockers)
	}
	if old := now(t, l, "old"); !lease.Covers(old.Holds, exclusive("db", "file:/a")) || !old.Pause.Woken {
		t.Errorf("what died holds stays away from the one that waits: %v, %+v", old.Holds, old.Pause)
	}
	if young := now(t, l, "young"); len(young.Holds) > 0 || young.Pause.Woken {
		t.Errorf("the one that died holds %v, woken %v", young.Holds, young.Pause.Woken)
	}
	acquires(t, l, "young", dies, "db") // repeated
	ends(t, l, "old")
	if young := now(t, l, "young"); !young.Pause.Woken || len(young.Holds) > 0 {
		t.Errorf("the one that died is woken: %v, and holds %v", young.Pause.Woken, young.Holds)
	}
	_, _, err := l.AcquireLeases(t.Context(), now(t, l, "young").Record, exclusive("db"), 0)
	wantReason(t, err, agboxv1.ErrorReason_OBSERVATION_PENDING) // what changed meanwhile, it does not know
	acquires(t, l, "young", granted, "db")
	if young := now(t, l, "young"); young.State != agents.Executing || young.Holds[0].Fence == 0 {
		t.Errorf("it is %s with %v", young.Word(), young.Holds)
	}
}

func TestOneThatDiedIsQueuedWhenOnlyYoungerOnesAreInTheWay(t *testing.T) {
	l := workers(t, "oldest", "middle", "young")
	acquires(t, l, "oldest", granted, "db")
	acquires(t, l, "young", granted, "file:/a")
	acquires(t, l, "middle", dies, "db", "file:/a")
	ends(t, l, "oldest")
	if middle := now(t, l, "middle"); middle.Queued == 0 || middle.Pause.Woken {
		t.Fatalf("it is at place %d in the queue, woken %v", middle.Queued, middle.Pause.Woken)
	}
	acquires(t, l, "young", dies, "db") // it does not overtake
	if middle := now(t, l, "middle"); !lease.Covers(middle.Holds, exclusive("db", "file:/a")) {
		t.Errorf("the queued agent holds %v", middle.Holds)
	}
}

func TestPlanningHoldsNothing(t *testing.T) {
	l := workers(t, "old", "young")
	acquires(t, l, "young", granted, "db")
	acquires(t, l, "old", waits, "db")
	emitAgent(t, l, now(t, l, "young").Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, Incarnation: 1, State: agents.Planning})
	if got := leaseStory(t, l, "young"); got[len(got)-1] != "RELEASED" || len(now(t, l, "young").Holds) > 0 {
		t.Errorf("after PLANNING it has %v", got)
	}
	if old := now(t, l, "old"); len(old.Holds) != 1 {
		t.Errorf("the one that waited holds %v", old.Holds)
	}
}

func TestAPlanThatIsSoonMadeReleasesToo(t *testing.T) {
	l := workers(t, "old", "young")
	acquires(t, l, "young", granted, "db")
	acquires(t, l, "old", waits, "db")
	var reports []*agboxv1.AgentEvent
	for i, state := range []agboxv1.AgentState{agents.Planning, agents.Executing} {
		reports = append(reports, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_PHASE, Incarnation: 1, State: state, JournalUpto: uint64(i + 1)})
	}
	if _, err := l.RecordReports(t.Context(), "young", Reports{Events: reports}); err != nil {
		t.Fatal(err)
	}
	if young := now(t, l, "young"); len(young.Holds) > 0 || young.State != agents.Executing || len(now(t, l, "old").Holds) != 1 {
		t.Errorf("it is %s and holds %v", young.Word(), young.Holds)
	}
}

func TestLeasesAreReleasedByNameAndBroken(t *testing.T) {
	l := workers(t, "a", "b")
	acquires(t, l, "a", granted, "db", "file:/a", "file:/b")
	first := now(t, l, "a").Holds[0].Fence
	if _, err := l.ReleaseLeases(t.Context(), now(t, l, "a").Record, []string{"file:/a", "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.BreakLease(t.Context(), "a", "db"); err != nil {
		t.Fatal(err)
	}
	if a := now(t, l, "a"); !slices.EqualFunc(a.Holds, []string{"file:/b"}, func(h lease.Hold, n string) bool { return h.Resource == n }) {
		t.Errorf("it holds %v; want file:/b", a.Holds)
	}
	_, err := l.BreakLease(t.Context(), "a", "db")
	wantReason(t, err, agboxv1.ErrorReason_LEASE_CONFLICT)
	acquires(t, l, "b", granted, "db")
	if again := now(t, l, "b").Holds[0].Fence; again <= first {
		t.Errorf("the fencing number %d follows %d", again, first)
	}
	if _, err := l.ReleaseLeases(t.Context(), now(t, l, "a").Record, nil); err != nil || len(now(t, l, "a").Holds) > 0 {
		t.Errorf("it still holds %v, %v", now(t, l, "a").Holds, err)
	}
}

func TestLeasesAreListedByResource(t *testing.T) {
	l := workers(t, "a", "b", "c")
	acquires(t, l, "c", granted, "x")
	acquires(t, l, "b", waits, "x", "db")
	acquires(t, l, "a", waits, "db", "file:/a")
	var got []string
	for _, e := range l.Leases("") {
		got = append(got, fmt.Sprint(e.GetLease().GetResource(), " ", e.GetAgentId(), " ", e.GetVerdict(), " ", e.GetLease().GetFence() > 0, " ", e.GetWaitsFor()))
	}
	want := []string{
		"db a LEASE_VERDICT_WAIT false [b]", "db b LEASE_VERDICT_WAIT false [c]", "file:/a a LEASE_VERDICT_WAIT false [b]",
		"x b LEASE_VERDICT_WAIT false [c]", "x c LEASE_VERDICT_GRANTED true []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed: %q; want %q", got, want)
	}
	if of := l.Leases("c"); len(of) != 1 {
		t.Errorf("of c: %v", of)
	}
}

func TestWhatAnAgentCanHoldIsBounded(t *testing.T) {
	l := workers(t, "a")
	var names []string
	for n := range agents.MaxLeases {
		names = append(names, fmt.Sprint("r", n))
	}
	acquires(t, l, "a", granted, names...)
	_, _, err := l.AcquireLeases(t.Context(), now(t, l, "a").Record, exclusive("one more"), 0)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_LIMIT)
}

func TestAnAgentWaitsForOneManifestAtATime(t *testing.T) {
	l := workers(t, "old", "young")
	acquires(t, l, "young", granted, "db")
	acquires(t, l, "old", waits, "db")
	_, _, err := l.AcquireLeases(t.Context(), now(t, l, "old").Record, exclusive("other"), 0)
	wantReason(t, err, agboxv1.ErrorReason_LEASE_CONFLICT)
	stale := now(t, l, "old").Record
	ends(t, l, "old")
	_, _, err = l.AcquireLeases(t.Context(), stale, exclusive("db"), 0)
	wantReason(t, err, agboxv1.ErrorReason_AGENT_WRONG_STATE)
}

func TestAnAncestorInTheWayIsTold(t *testing.T) {
	l := workers(t, "parent", "other")
	worker(t, l, "child", "parent")
	acquires(t, l, "parent", granted, "db")
	acquires(t, l, "other", granted, "file:/a")
	acquires(t, l, "child", dies, "db", "file:/a")
	if got, want := texts(t, l, "parent"), "1 child Agent child is PAUSED because of what you hold or wait for. It needs db, file:/a."; !slices.Contains(got, want) {
		t.Errorf("the parent got %q", got)
	}
	if got := texts(t, l, "other"); len(got) > 0 {
		t.Errorf("an agent that is no ancestor got %q", got)
	}
	worker(t, l, "grandchild", "child")
	acquires(t, l, "grandchild", dies, "db")
	if got, want := texts(t, l, "parent"), "child Agent grandchild is PAUSED because of what you hold or wait for. It needs db."; !slices.ContainsFunc(got, func(m string) bool { return strings.HasSuffix(m, want) }) {
		t.Errorf("the grandparent got %q", got)
	}
}

func TestLeasesAreThereAgainAfterARestart(t *testing.T) {
	dir := t.TempDir()
	l, stop := open(t, dir)
	ready(t, l, "s")
	worker(t, l, "old", "")
	worker(t, l, "young", "")
	acquires(t, l, "young", granted, "db")
	acquires(t, l, "old", waits, "db")
	before := now(t, l, "young").Holds
	stop()
	l, stop = open(t, dir)
	defer stop()
	if after := now(t, l, "young").Holds; !slices.Equal(before, after) {
		t.Errorf("it held %v and holds %v", before, after)
	}
	acquires(t, l, "old", waits, "db")
	ends(t, l, "young")
	if old := now(t, l, "old"); len(old.Holds) != 1 {
		t.Errorf("after the restart, the one that waits holds %v", old.Holds)
	}
}

// Twenty agents ask for up to three of six resources at a time, release some, plan anew and
// end, in random order. In the end each has done all that it had to do.
func TestAllAgentsOfARandomScheduleFinish(t *testing.T) {
	for seed := range uint64(4) {
		random := rand.New(rand.NewPCG(seed, 20))
		var ids []string
		for n := range 20 {
			ids = append(ids, fmt.Sprintf("a%02d", n))
		}
		l, todo := workers(t, ids...), make(map[string]int)
		manifests := make(map[string][]lease.Claim)
		for _, id := range ids {
			todo[id] = 3
		}
		for moves := 0; len(todo) > 0; moves++ {
			if moves > 20_000 {
				t.Fatalf("seed %d: %d agents do not finish, for example %+v", seed, len(todo), now(t, l, ids[0]).Record)
			}
			id := ids[random.IntN(len(ids))]
			a := now(t, l, id)
			switch {
			case a.State == agents.Paused && !a.Pause.Woken:
				continue
			case a.State == agents.Paused && len(a.Wants) == 0:
				emitAgent(t, l, a.Record, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: agents.Executing, Incarnation: 1, Observation: a.PendingObservation()})
				continue
			case a.State == agents.Executing && todo[id] == 0:
				ends(t, l, id)
				delete(todo, id)
				ids = slices.DeleteFunc(ids, func(other string) bool { return other == id })
				continue
			case a.State == agents.Executing:
				todo[id]--
				manifests[id] = someOf(random)
			}
			want, blockers := lease.Decide(leaseTable(l), a.LeaseParty(), lease.Normal(manifests[id]))
			_, answer, err := l.AcquireLeases(t.Context(), a.Record, manifests[id], a.PendingObservation())
			if err != nil {
				t.Fatal(err)
			}
			if held := lease.Covers(a.Holds, lease.Normal(manifests[id])); held {
				want, blockers = lease.Granted, nil
			}
			if answer.Verdict != verdicts[want] || !slices.Equal(answer.Blockers, blockers[:min(len(blockers), maxBlockers)]) {
				t.Fatalf("seed %d: %s gets %+v for %v; the rule says %v against %v", seed, id, answer, manifests[id], want, blockers)
			}
			noTwoHold(t, l)
			nothingIsLeft(t, l)
		}
	}
}

// someOf is a manifest of one to three of six resources.
func someOf(random *rand.Rand) (manifest []lease.Claim) {
	for _, n := range random.Perm(6)[:1+random.IntN(3)] {
		manifest = append(manifest, lease.Claim{Resource: fmt.Sprint("r", n), Mode: lease.Mode(1 + random.IntN(2))})
	}
	return manifest
}

// noTwoHold fails if two agents hold what conflicts.
func noTwoHold(t *testing.T, l *Ledger) {
	t.Helper()
	holds := make(map[string]lease.Mode)
	err := error(nil)
	for _, a := range l.Agents(nil) {
		for _, h := range a.Holds {
			if before, held := holds[h.Resource]; held && (before == lease.Exclusive || h.Mode == lease.Exclusive) {
				err = errors.Join(err, fmt.Errorf("%s is held by %s and by another agent", h.Resource, a.ID))
			}
			holds[h.Resource] = max(h.Mode, holds[h.Resource])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
