package agents

import (
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/lease"
)

func (h *history) woken() *history {
	h.t.Helper()
	wake := &agboxv1.AgentWake{}
	if h.r.AwaitsApproval() {
		wake.Approval = agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED
	}
	return h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_WOKEN, Details: &agboxv1.AgentEvent_Wake{Wake: wake}})
}

// leased adds an event about leases. Its position is ten times its sequence.
func (h *history) leased(typ agboxv1.AgentEventType, of *agboxv1.AgentLeases) *history {
	h.t.Helper()
	return h.add(&agboxv1.AgentEvent{
		Type: typ, Position: 10 * (h.r.LastSequence + 1), Details: &agboxv1.AgentEvent_Lease{Lease: of},
	})
}

func resources(names ...string) *agboxv1.AgentLeases {
	of := new(agboxv1.AgentLeases)
	for _, name := range names {
		of.Leases = append(of.Leases, &agboxv1.AgentLease{Resource: name, Mode: agboxv1.LeaseMode_LEASE_MODE_EXCLUSIVE})
	}
	return of
}

func (h *history) asks(names ...string) *history {
	h.t.Helper()
	return h.leased(agboxv1.AgentEventType_AGENT_MANIFEST, resources(names...))
}

func (h *history) granted(names ...string) *history {
	h.t.Helper()
	return h.leased(agboxv1.AgentEventType_AGENT_GRANTED, resources(names...))
}

func (h *history) conflict(verdict agboxv1.LeaseVerdict) *history {
	h.t.Helper()
	return h.leased(agboxv1.AgentEventType_AGENT_CONFLICT, &agboxv1.AgentLeases{Verdict: verdict, Message: "db is taken"})
}

const (
	wait = agboxv1.LeaseVerdict_LEASE_VERDICT_WAIT
	die  = agboxv1.LeaseVerdict_LEASE_VERDICT_DIE
)

func TestAnAgentThatWaitsKeepsWhatItHoldsAndOneThatDiesDoesNot(t *testing.T) {
	if r := working(t).asks("db").granted("db").r; r.State != Executing || len(r.Holds) != 1 || r.Holds[0].Fence != 10*r.LastSequence || r.Wants != nil {
		t.Errorf("granted: %v with %v, wants %v", r.State, r.Holds, r.Wants)
	}
	second := func() *history { return working(t).asks("db").granted("db").asks("file:/a") }
	r := second().conflict(wait).r
	if r.State != Paused || r.Pause.Reason != agboxv1.PauseReason_PAUSE_REASON_CONFLICT || r.Pause.Woken || len(r.Holds) != 1 || r.Queued != 10*r.LastSequence {
		t.Errorf("an agent that waits: %v (%+v) with %v, place %d in the queue", r.State, r.Pause, r.Holds, r.Queued)
	}
	r = second().conflict(die).r
	if r.State != Paused || r.Holds != nil || r.Queued != 0 || len(r.Wants) != 1 {
		t.Errorf("an agent that dies: %v with %v, place %d, wants %v", r.State, r.Holds, r.Queued, r.Wants)
	}
	r = second().conflict(wait).granted("file:/a").r
	if r.State != Paused || len(r.Holds) != 2 || r.Queued != 0 || r.Wants != nil {
		t.Errorf("after its wait: %v with %v, place %d, wants %v", r.State, r.Holds, r.Queued, r.Wants)
	}
}

func TestNobodyExecutesWhoseManifestWasNotGranted(t *testing.T) {
	resume := func(r Record, to agboxv1.AgentState) bool {
		return Legal(r, &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: to, Incarnation: r.Incarnation.N, Observation: r.PendingObservation()})
	}
	asked := working(t).asks("db").conflict(die).woken().r
	if resume(asked, Executing) || !resume(asked, Planning) {
		t.Error("an agent that died may execute, or may not plan anew")
	}
	got := working(t).asks("db").conflict(wait).granted("db").woken().r
	if !resume(got, Executing) {
		t.Error("an agent that was granted its manifest may not execute")
	}
	if ev := entered(asked, Seen{}, Rules{ReadyStart: true}); ev.GetState() != Planning {
		t.Errorf("a program that need not report goes on with %v", ev.GetState())
	}
}

func TestLeasesExpireOnlyWithoutAnIncarnationAndAWait(t *testing.T) {
	r := rules()
	r.LeaseTTL = time.Minute
	ended := &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, DrainedFor: agboxv1.PauseReason_PAUSE_REASON_REQUEST}
	away := func(h *history) Record {
		h.at = t0.Add(time.Hour)
		h.endWith(ended)
		return h.add(Ending(h.r, r)).r
	}
	for _, row := range []struct {
		name    string
		r       Record
		expires bool
	}{
		{"it works", working(t).asks("db").granted("db").r, false},
		{"it is away", away(working(t).asks("db").granted("db")), true},
		{"it is away and waits", away(working(t).asks("db").granted("db").asks("x").conflict(wait)), false},
		{"it is away and got what it waited for", away(working(t).asks("db").conflict(wait).granted("db").woken()), true},
		{"it holds nothing", away(working(t)), false},
		{"it is over", working(t).asks("db").granted("db").endWith(ended).add(Reaped("")).r, false},
	} {
		seen := Seen{Sandbox: SandboxStopped, Exec: ExecRunning}
		due := t0.Add(time.Hour + time.Minute)
		early, late := Next(row.r, seen, r, due.Add(-time.Second)), Next(row.r, seen, r, due)
		if row.expires && (early.Do != Rest || !early.Wake.Equal(due)) {
			t.Errorf("%s: before its leases expire the step is %+v; want a rest until then", row.name, early)
		}
		if expires := late.Event.GetType() == agboxv1.AgentEventType_AGENT_LEASES_EXPIRED; expires != row.expires {
			t.Errorf("%s: leases expire is %v, step %+v", row.name, expires, late)
		}
		if !row.expires {
			continue
		}
		h := &history{t: t, r: row.r, at: due}
		if h.add(late.Event); len(h.r.Holds) > 0 {
			t.Errorf("%s: it still holds %v", row.name, h.r.Holds)
		}
	}
}

func TestAReleaseLeavesTheRest(t *testing.T) {
	h := working(t).asks("a", "b").granted("a", "b")
	before := h.r
	r := h.leased(agboxv1.AgentEventType_AGENT_RELEASED, resources("a")).r
	if !slices.EqualFunc(r.Holds, []string{"b"}, func(h lease.Hold, name string) bool { return h.Resource == name }) {
		t.Errorf("it holds %v; want b", r.Holds)
	}
	if len(before.Holds) != 2 || before.Holds[0].Resource != "a" {
		t.Errorf("the record before has changed: %v", before.Holds)
	}
	r = working(t).asks("db").conflict(wait).leased(agboxv1.AgentEventType_AGENT_RELEASED, &agboxv1.AgentLeases{Dropped: true}).r
	if r.Queued != 0 || r.Wants != nil {
		t.Errorf("a dropped request: place %d, wants %v", r.Queued, r.Wants)
	}
}

func TestAStateThatAllowsNoLeasesForfeitsThem(t *testing.T) {
	for _, row := range []struct {
		r    Record
		want bool
	}{
		{working(t).asks("db").granted("db").r, false},
		{working(t).asks("db").granted("db").phase(Verifying).r, false},
		{working(t).asks("db").granted("db").phase(Planning).r, true},
		{working(t).phase(Planning).r, false},
	} {
		if got := row.r.ForfeitsLeases(); got != row.want {
			t.Errorf("%v with %v forfeits its leases: %v", row.r.State, row.r.Holds, got)
		}
	}
}

func TestAStackIsAScopeOfLeases(t *testing.T) {
	inner, outer := Record{ID: "i", StackRoots: []string{"root", "sub"}}, Record{ID: "o", StackRoots: []string{"root"}}
	if a, b, none := inner.LeaseParty().Scope, outer.LeaseParty().Scope, (Record{}).LeaseParty().Scope; a != "sub" || b != "root" || none != "" {
		t.Errorf("the scopes are %q, %q and %q", a, b, none)
	}
}
