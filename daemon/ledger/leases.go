package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/lease"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// LeaseAnswer is the answer to a manifest.
type LeaseAnswer struct {
	Verdict agboxv1.LeaseVerdict
	// Blockers are the ids of the agents against which a new manifest was decided, oldest
	// first, at most maxBlockers.
	Blockers []string
}

// Leases returns what agents hold and ask for, sorted by resource; those of one agent, or of
// all if agentID is empty.
func (l *Ledger) Leases(agentID string) []*agboxv1.LeaseEntry {
	all := l.leased(func(Agent) bool { return true })
	if a, _ := l.Agent(agentID); agentID != "" && a.Queued == 0 {
		all = []Agent{a} // the others do not matter to it
	}
	book := lease.NewBook()
	for _, a := range all {
		book.Put(a.LeaseParty())
	}
	var list []*agboxv1.LeaseEntry
	for _, a := range all {
		if agentID != "" && a.ID != agentID {
			continue
		}
		for _, held := range agents.Leases(a.Holds) {
			list = append(list, &agboxv1.LeaseEntry{Lease: held, AgentId: a.ID, Name: a.Name, Scope: a.Scope(), Verdict: granted})
		}
		verdict := dies
		if a.Queued > 0 {
			verdict = waits
		}
		for _, wanted := range agents.Wanted(a.Wants) {
			list = append(list, &agboxv1.LeaseEntry{Lease: wanted, AgentId: a.ID, Name: a.Name, Scope: a.Scope(), Verdict: verdict, WaitsFor: book.WaitsFor(a.ID)})
		}
	}
	slices.SortStableFunc(list, func(a, b *agboxv1.LeaseEntry) int {
		return strings.Compare(a.GetLease().GetResource(), b.GetLease().GetResource())
	})
	return list
}

// AcquireLeases asks for a manifest for the incarnation of the agent that was seen. A
// repeated request changes nothing: what was granted is granted, and who waits or has died
// still does, until it was woken. Then observation must be the one that it has taken; 0 if
// none. An agent that is paused for another reason is OBSERVATION_PENDING until it is woken.
func (l *Ledger) AcquireLeases(ctx context.Context, seen agents.Record, manifest []lease.Claim, observation uint64) (Agent, LeaseAnswer, error) {
	var answer LeaseAnswer
	after, err := l.updateAgent(ctx, seen.ID, func(t *agentTxn) (err error) {
		answer, err = t.acquire(seen, lease.Normal(manifest), observation)
		return err
	})
	return after, answer, err
}

func (t *agentTxn) acquire(seen agents.Record, manifest []lease.Claim, observation uint64) (LeaseAnswer, error) {
	if err := t.stillRuns(seen); err != nil {
		return LeaseAnswer{}, err
	}
	if t.a.State == agents.Paused && !t.a.Pause.Woken && len(t.a.Wants) == 0 {
		return LeaseAnswer{}, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_OBSERVATION_PENDING,
			"Agent %s is %s: wait until it is woken, for example with \"agbox-agent pause idle\", which prints the observation, and then ask again.", t.a.ID, t.a.Word()).With("agent_id", t.a.ID)
	}
	if answer, known, err := t.earlierAnswer(manifest); known || err != nil {
		return answer, cmp.Or(err, errNothing)
	}
	if n := len(lease.Merge(t.a.Holds, manifest, 0)); n > agents.MaxLeases {
		return LeaseAnswer{}, fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_AGENT_LIMIT,
			"Agent %s would hold %d resources, and an agent can hold %d: release some first.", t.a.ID, n, agents.MaxLeases).With("agent_id", t.a.ID)
	}
	if pending := t.a.PendingObservation(); pending != observation && pending != 0 {
		return LeaseAnswer{}, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_OBSERVATION_PENDING,
			"Things may have changed while agent %s was paused: take observation %d first, for example with \"agbox-agent hydrate\", and then ask again.", t.a.ID, pending).With("agent_id", t.a.ID)
	}
	err := t.append(&agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_MANIFEST, Observation: observation,
		Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{Leases: agents.Wanted(manifest)}},
	})
	if err != nil {
		return LeaseAnswer{}, err
	}
	book, self := t.l.leasesIn(t.tx), t.a.LeaseParty()
	verdict := book.Verdict(self, manifest)
	if verdict == lease.Granted {
		return LeaseAnswer{Verdict: granted}, t.lease(agboxv1.AgentEventType_AGENT_GRANTED, &agboxv1.AgentLeases{Leases: agents.Given(t.a.Holds, manifest)})
	}
	blockers, count := book.Blockers(self, manifest, maxBlockers)
	answer := LeaseAnswer{verdicts[verdict], blockers}
	conflict := &agboxv1.AgentLeases{
		Leases: agents.Wanted(manifest), Verdict: answer.Verdict, Blockers: blockers,
		Message: t.l.conflictSentence(t.tx, manifest, answer, count-1),
	}
	if verdict == lease.Die {
		conflict.Lost = agents.Leases(t.a.Holds)
	}
	return answer, t.lease(agboxv1.AgentEventType_AGENT_CONFLICT, conflict)
}

var verdicts = map[lease.Verdict]agboxv1.LeaseVerdict{lease.Granted: granted, lease.Wait: waits, lease.Die: dies}

// earlierAnswer returns the answer to a manifest that was answered before and whose answer still
// holds.
func (t *agentTxn) earlierAnswer(manifest []lease.Claim) (answer LeaseAnswer, known bool, err error) {
	a := t.a
	if len(a.Wants) == 0 {
		return LeaseAnswer{Verdict: granted}, lease.Covers(a.Holds, manifest), nil
	}
	if a.Pause != nil && a.Pause.Woken && a.Queued == 0 {
		return LeaseAnswer{}, false, nil // it asks again
	}
	if !slices.Equal(a.Wants, manifest) {
		return LeaseAnswer{}, false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_LEASE_CONFLICT,
			"Agent %s already waits for %s: wait for that, or go back to PLANNING to ask for something else.", a.ID, resourceList(a.Wants)).With("agent_id", a.ID)
	}
	answer.Verdict = dies
	if a.Queued > 0 {
		answer.Verdict = waits
	}
	return answer, true, nil
}

// stillRuns refuses the request of an incarnation that has ended.
func (t *agentTxn) stillRuns(seen agents.Record) error {
	if t.a.Incarnation == nil || seen.Incarnation == nil || t.a.Incarnation.N != seen.Incarnation.N {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_AGENT_WRONG_STATE,
			"The incarnation of agent %s that asks has ended.", seen.ID).With("agent_id", seen.ID)
	}
	return nil
}

// conflictSentence says who has what the agent asks for: the first blocker, and how many more.
func (l *Ledger) conflictSentence(tx *store.Tx, manifest []lease.Claim, answer LeaseAnswer, more int) string {
	first := l.agentIn(tx, answer.Blockers[0])
	does := "waits for"
	resource := lease.Contested(first.Wants, manifest)
	if held := lease.Contested(lease.Claimed(first.Holds), manifest); held != "" {
		does, resource = "holds", held
	}
	name := first.Called()
	if more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	if answer.Verdict == waits {
		return fmt.Sprintf("It waits for %s, which %s %s.", name, does, resource)
	}
	return fmt.Sprintf("It released its leases for %s, which %s %s.", name, does, resource)
}

// ReleaseLeases releases resources that the incarnation seen holds; all if names is empty.
// Names that it does not hold are ignored.
func (l *Ledger) ReleaseLeases(ctx context.Context, seen agents.Record, names []string) (Agent, error) {
	return l.updateAgent(ctx, seen.ID, func(t *agentTxn) error {
		if err := t.stillRuns(seen); err != nil {
			return err
		}
		return t.release(func(h lease.Hold) bool { return len(names) == 0 || slices.Contains(names, h.Resource) }, "It released them.")
	})
}

// BreakLease takes a resource away from an agent.
func (l *Ledger) BreakLease(ctx context.Context, id, resource string) (Agent, error) {
	return l.updateAgent(ctx, id, func(t *agentTxn) error {
		if !t.a.Exists() {
			return agentNotFound(id)
		}
		of := func(h lease.Hold) bool { return h.Resource == resource }
		if !slices.ContainsFunc(t.a.Holds, of) {
			return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_LEASE_CONFLICT,
				"Agent %s does not hold %q; \"agbox agent leases\" shows who holds what.", t.a.Called(), resource).With("agent_id", id)
		}
		return t.release(of, "A user broke the lease.")
	})
}

// release appends the release of what the agent holds and fits.
func (t *agentTxn) release(fits func(lease.Hold) bool, why string) error {
	gone := slices.DeleteFunc(slices.Clone(t.a.Holds), func(h lease.Hold) bool { return !fits(h) })
	if len(gone) == 0 {
		return errNothing
	}
	return t.lease(agboxv1.AgentEventType_AGENT_RELEASED, &agboxv1.AgentLeases{Leases: agents.Leases(gone), Message: why})
}
