package agents

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func resumed(r Record, to agboxv1.AgentState, observation uint64) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_RESUMED, State: to, Incarnation: r.Incarnation.N, Observation: observation}
}

func TestNobodyGoesOnWhoHasNotTakenTheObservation(t *testing.T) {
	h := working(t).pauseFor(forApproval)
	for _, id := range []uint64{0, h.r.LastSequence, h.r.LastSequence + 1} {
		if Legal(h.r, resumed(h.r, Executing, id)) {
			t.Errorf("an agent that was not woken goes on with observation %d", id)
		}
	}
	h.woken()
	first := h.r.PendingObservation()
	if first == 0 || first != h.r.LastSequence {
		t.Fatalf("the observation is %d", first)
	}
	for _, id := range []uint64{0, first - 1, first + 1} {
		for _, to := range []agboxv1.AgentState{Executing, Planning} {
			if Legal(h.r, resumed(h.r, to, id)) {
				t.Errorf("it goes on to %v with observation %d; want %d", to, id, first)
			}
		}
	}
	if !Legal(h.r, resumed(h.r, Executing, first)) {
		t.Error("it may not go on with the observation")
	}
	// Its program ends before it has taken it: the next one gets another observation.
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143, Signal: 15, Spoke: true}).add(Ending(h.r, rules()))
	h.begun()
	if second := h.r.PendingObservation(); second == first || Legal(h.r, resumed(h.r, Executing, first)) || !Legal(h.r, resumed(h.r, Executing, second)) {
		t.Errorf("the observation of the next incarnation is %d, that before %d", second, first)
	}
	h.add(resumed(h.r, Executing, h.r.PendingObservation()))
	if h.r.State != Executing || h.r.Pause != nil || h.r.Away != nil {
		t.Errorf("after the pause: %+v", h.r)
	}
}

// TestWhoGoesOnByItself is about programs with "ready: start", which need not report.
func TestWhoGoesOnByItself(t *testing.T) {
	goesOn := func(r Record, spoke bool) bool {
		ev := entered(r, Seen{Spoke: spoke}, Rules{ReadyStart: true})
		if ev != nil && !Legal(r, ev) {
			t.Errorf("%v is not legal", ev)
		}
		return ev != nil
	}
	live := working(t).pauseFor(forApproval).woken().r
	if !goesOn(live, false) || goesOn(live, true) {
		t.Error("a program that was paused while it runs goes on by itself if and only if it never uses the agent socket")
	}
	if ev := entered(live, Seen{Unknown: true}, Rules{ReadyStart: true}); ev != nil {
		t.Error("a program goes on by itself before its supervisor has told whether it speaks")
	}
	if next := working(t).crash("no").begun().r; !goesOn(next, true) || !goesOn(next, false) {
		t.Error("a program that got the observation as a file does not go on")
	}
	denied := working(t).pauseFor(forApproval).add(&agboxv1.AgentEvent{
		Type:    agboxv1.AgentEventType_AGENT_WOKEN,
		Details: &agboxv1.AgentEvent_Wake{Wake: &agboxv1.AgentWake{Approval: agboxv1.AgentApproval_AGENT_APPROVAL_DENIED}},
	}).r
	if ev := entered(denied, Seen{}, Rules{ReadyStart: true}); ev.GetState() != Planning {
		t.Errorf("what was denied goes on with %v", ev)
	}
}

func TestANewPlanDropsTheDigest(t *testing.T) {
	save := func(h *history, seq uint64, kind agboxv1.CheckpointKind) {
		h.add(&agboxv1.AgentEvent{
			Type:    agboxv1.AgentEventType_AGENT_CHECKPOINT,
			Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{Seq: seq, Kind: kind}},
		})
	}
	paused := func(replan bool) Record {
		h := working(t)
		save(h, 1, agboxv1.CheckpointKind_CHECKPOINT_KIND_STEP)
		save(h, 2, agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE)
		h.pauseFor(forApproval).woken()
		ev := resumed(h.r, Planning, h.r.PendingObservation())
		ev.Details = &agboxv1.AgentEvent_Resume{Resume: &agboxv1.AgentResume{Replan: replan}}
		return h.add(ev).r
	}
	if r := paused(false); len(r.UsableCheckpoints()) != 2 {
		t.Errorf("without a new plan: %v", r.Checkpoints)
	}
	if r := paused(true); len(r.Checkpoints) != 2 || len(r.UsableCheckpoints()) != 1 || r.UsableCheckpoints()[0].GetSeq() != 1 || r.Checkpoint().GetSeq() != 2 {
		t.Errorf("with a new plan: %v", r.Checkpoints)
	}
}

func TestTwoPicturesAreCompared(t *testing.T) {
	picture := func() Picture {
		return Picture{
			Surroundings: &agboxv1.AgentPicture{
				SandboxId: "s", ReadyAt: timestamppb.New(t0), Image: "i",
				Services: map[string]uint32{"db": 1, "web": 3}, Limits: map[string]string{"memory_limit": "1g"},
			},
			Files: map[string]journal.File{
				"/same": {Exists: true, Size: 5, Modified: 1, Inode: 2, Sum: "a"}, "/large": {Exists: true, Size: 5 << 20, Modified: 1, Inode: 3}, "/none": {},
			},
			Limits: map[string]string{"memory.max": "max"},
		}
	}
	none := Changes{Files: []Change{}, Services: []Change{}, Limits: []Change{}}
	for name, row := range map[string]struct {
		change func(*Picture)
		want   func(*Changes)
	}{
		"nothing":    {func(*Picture) {}, func(*Changes) {}},
		"no picture": {func(p *Picture) { *p = Picture{Files: p.Files} }, func(*Changes) {}},
		"written again with the same content": {func(p *Picture) {
			p.Files["/same"] = journal.File{Exists: true, Size: 5, Modified: 9, Inode: 8, Sum: "a"}
		}, func(*Changes) {}},
		"other content": {func(p *Picture) {
			p.Files["/same"] = journal.File{Exists: true, Size: 5, Modified: 1, Inode: 2, Sum: "b"}
		}, func(c *Changes) { c.Files = []Change{{Name: "/same", What: Changed}} }},
		"large, touched": {func(p *Picture) {
			p.Files["/large"] = journal.File{Exists: true, Size: 5 << 20, Modified: 2, Inode: 3, Sum: ""}
		}, func(c *Changes) { c.Files = []Change{{Name: "/large", What: Changed}} }},
		"replaced by a large one": {func(p *Picture) {
			p.Files["/same"] = journal.File{Exists: true, Size: 5 << 20, Modified: 1, Inode: 2, Sum: ""}
		}, func(c *Changes) { c.Files = []Change{{Name: "/same", What: Changed}} }},
		"deleted and created": {func(p *Picture) { p.Files["/same"], p.Files["/none"] = journal.File{}, journal.File{Exists: true} }, func(c *Changes) {
			c.Files = []Change{{Name: "/none", What: Created}, {Name: "/same", What: Removed}}
		}},
		"not looked at":           {func(p *Picture) { delete(p.Files, "/none") }, func(c *Changes) { c.Files = []Change{{Name: "/none", What: Unknown}} }},
		"a service restarted":     {func(p *Picture) { p.Surroundings.Services["db"] = 2 }, func(c *Changes) { c.Services = []Change{{Name: "db", What: Restarted}} }},
		"the container restarted": {func(p *Picture) { p.Surroundings.ReadyAt = timestamppb.New(t0.Add(time.Second)) }, func(c *Changes) { c.Container = Restarted }},
		"another sandbox":         {func(p *Picture) { p.Surroundings.SandboxId = "s2" }, func(c *Changes) { c.Container = Remade }},
		"limits": {func(p *Picture) {
			p.Surroundings.Image, p.Surroundings.Limits["memory_limit"], p.Limits["memory.max"] = "j", "2g", "2147483648"
		}, func(c *Changes) {
			c.Limits = []Change{{"image", "", "i", "j"}, {"memory_limit", "", "1g", "2g"}, {"memory.max", "", "max", "2147483648"}}
		}},
	} {
		now, want := picture(), none
		row.change(&now)
		row.want(&want)
		if got := Compare(picture(), now); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v; want %+v", name, got, want)
		}
	}
}

func TestLostLeases(t *testing.T) {
	before := []*agboxv1.AgentLease{{Resource: "kept", Fence: 1}, {Resource: "lost", Fence: 2}, {Resource: "again", Fence: 3}}
	now := []lease.Hold{{Claim: lease.Claim{Resource: "kept"}, Fence: 1}, {Claim: lease.Claim{Resource: "again"}, Fence: 9}, {Claim: lease.Claim{Resource: "new"}, Fence: 8}}
	if lost := Lost(before, now); !reflect.DeepEqual(lost, []string{"lost", "again"}) {
		t.Errorf("lost: %v", lost)
	}
}

func TestADigestIsMissingUntilItComes(t *testing.T) {
	h := working(t)
	save := func(kind agboxv1.CheckpointKind) {
		h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_CHECKPOINT, Incarnation: h.r.Incarnation.N,
			Details: &agboxv1.AgentEvent_Checkpoint{Checkpoint: &agboxv1.AgentCheckpoint{Seq: h.r.Checkpoint().GetSeq() + 1, Kind: kind}}})
	}
	const digest, turn = agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE, agboxv1.CheckpointKind_CHECKPOINT_KIND_TURN
	missing := func(want bool, when string) {
		t.Helper()
		if got := h.r.DigestMissing(); got != want {
			t.Errorf("%s the digest is missing: %v", when, got)
		}
	}
	missing(false, "while the agent works")
	manifest := &agboxv1.AgentLeases{Leases: []*agboxv1.AgentLease{{Resource: "db"}}, Verdict: agboxv1.LeaseVerdict_LEASE_VERDICT_WAIT}
	for _, typ := range []agboxv1.AgentEventType{agboxv1.AgentEventType_AGENT_MANIFEST, agboxv1.AgentEventType_AGENT_CONFLICT} {
		h.add(&agboxv1.AgentEvent{Type: typ, Details: &agboxv1.AgentEvent_Lease{Lease: manifest}})
	}
	missing(true, "after a conflict")
	save(turn)
	missing(true, "with the checkpoint of a turn")
	save(digest)
	missing(false, "once it has come")
	h.add(&agboxv1.AgentEvent{Type: agboxv1.AgentEventType_AGENT_GRANTED, Details: &agboxv1.AgentEvent_Lease{Lease: manifest}})
	h.woken()
	missing(false, "when the agent is woken")
	h.add(resumed(h.r, Executing, h.r.PendingObservation())).pauseFor(forApproval)
	missing(true, "in the next pause, with the digest of the one before")
	h.woken().add(resumed(h.r, Executing, h.r.PendingObservation()))
	save(digest)
	h.pauseFor(forApproval)
	missing(false, "when it came just before the pause")
	h.endWith(&agboxv1.IncarnationEnd{Kind: exited, ExitCode: 143, Signal: 15, Spoke: true})
	missing(false, "after the end of the program")
}

func TestTheNewestOfManyHoldersAreNamed(t *testing.T) {
	m := NewMeanwhile(Record{AwayFrom: 100, Wants: []lease.Claim{{Resource: "db", Mode: lease.Exclusive}}})
	const others = maxPassed + 4
	for n := range others {
		for range 2 { // read twice, it counts once
			m.Saw(&agboxv1.AgentEvent{AgentId: fmt.Sprint(n), Position: uint64(101 + n), Type: agboxv1.AgentEventType_AGENT_GRANTED,
				Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Leases: []*agboxv1.AgentLease{{Resource: "db"}, {Resource: "not its own"}}}}})
		}
	}
	m.Holds("0", []lease.Hold{{Claim: lease.Claim{Resource: "db"}, Fence: 101}})
	got := m.Passed(func(id string) string { return "name of " + id })
	if len(got) != 1 || got[0].Times != others || got[0].Fence != 100+others || len(got[0].Holders) != maxPassed {
		t.Fatalf("%+v", got)
	}
	if first, want := got[0].Holders[0], (PassedTo{"19", "name of 19", 1, 120}); first != want {
		t.Errorf("the newest holder is %+v; want %+v", first, want)
	}
}

func TestWhatAnAgentKeepsIsGivenWithItsFencingNumber(t *testing.T) {
	holds := lease.Merge(nil, []lease.Claim{{Resource: "a", Mode: lease.Exclusive}, {Resource: "b", Mode: lease.Shared}}, 7)
	for i, l := range Given(holds, []lease.Claim{{Resource: "a", Mode: lease.Shared}, {Resource: "b", Mode: lease.Exclusive}, {Resource: "c", Mode: lease.Shared}}) {
		if want := []uint64{7, 0, 0}[i]; l.GetFence() != want {
			t.Errorf("%s is given with the number %d; want %d", l.GetResource(), l.GetFence(), want)
		}
	}
}
