package agents

import (
	"slices"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/lease"
)

// Leases returns what an agent holds as clients see it.
func Leases(holds []lease.Hold) []*agboxv1.AgentLease {
	var list []*agboxv1.AgentLease
	for _, h := range holds {
		list = append(list, &agboxv1.AgentLease{Resource: h.Resource, Mode: modes[h.Mode], Fence: h.Fence})
	}
	return list
}

// Given returns what an agent gets beside what it holds: without a fencing number if it does
// not hold it, or not in that mode.
func Given(holds []lease.Hold, manifest []lease.Claim) []*agboxv1.AgentLease {
	list, kept := Wanted(manifest), make(map[string]uint64)
	for _, h := range lease.Merge(holds, manifest, 0) {
		kept[h.Resource] = h.Fence
	}
	for _, l := range list {
		l.Fence = kept[l.GetResource()]
	}
	return list
}

// Wanted returns what an agent asks for as clients see it.
func Wanted(claims []lease.Claim) []*agboxv1.AgentLease {
	var list []*agboxv1.AgentLease
	for _, c := range claims {
		list = append(list, &agboxv1.AgentLease{Resource: c.Resource, Mode: modes[c.Mode]})
	}
	return list
}

// Claims returns a manifest as the rules of leases take it.
func Claims(leases []*agboxv1.AgentLease) []lease.Claim {
	var claims []lease.Claim
	for _, l := range leases {
		mode := lease.Exclusive
		if l.GetMode() == agboxv1.LeaseMode_LEASE_MODE_SHARED {
			mode = lease.Shared
		}
		claims = append(claims, lease.Claim{Resource: l.GetResource(), Mode: mode})
	}
	return lease.Normal(claims)
}

// MaxLeases is how many resources an agent can hold and ask for.
const MaxLeases = 64

// legalLease reports whether an event about leases may follow the record.
func legalLease(r Record, ev *agboxv1.AgentEvent) bool {
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_MANIFEST:
		if r.Incarnation == nil {
			return false
		}
		return r.State == Planning || r.State == Acquiring || r.State == Executing || r.State == Paused && r.informed(ev)
	case agboxv1.AgentEventType_AGENT_GRANTED:
		return r.State == Acquiring || r.State == Executing || r.State == Verifying || r.State == Paused
	case agboxv1.AgentEventType_AGENT_CONFLICT:
		return r.State == Acquiring || r.State == Paused
	}
	return r.State != Pending
}

// foldLease is Fold for an event about leases.
func foldLease(r Record, ev *agboxv1.AgentEvent) Record {
	at, of := ev.GetOccurredAt().AsTime(), ev.GetLease()
	r.LeasedAt, r.LeaseSeq = at, ev.GetSequence()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_MANIFEST:
		r.State, r.Pause = Acquiring, nil
		r.Wants, r.Queued = Claims(of.GetLeases()), 0
	case agboxv1.AgentEventType_AGENT_GRANTED:
		r.Holds = lease.Merge(r.Holds, Claims(of.GetLeases()), ev.GetPosition())
		r.Wants, r.Queued = nil, 0
		if r.State == Acquiring {
			r.State = Executing
		}
	case agboxv1.AgentEventType_AGENT_CONFLICT:
		r.Queued = ev.GetPosition()
		if of.GetVerdict() == agboxv1.LeaseVerdict_LEASE_VERDICT_DIE {
			r.Holds, r.Queued = nil, 0
		}
		if r.State == Acquiring {
			r.State = Paused
			r.Pause = &Pause{Reason: agboxv1.PauseReason_PAUSE_REASON_CONFLICT, Message: of.GetMessage(), Since: at, Begun: ev.GetSequence()}
		}
	default: // released or expired
		gone := Claims(of.GetLeases())
		r.Holds = slices.DeleteFunc(slices.Clone(r.Holds), func(h lease.Hold) bool {
			return slices.ContainsFunc(gone, func(c lease.Claim) bool { return c.Resource == h.Resource })
		})
		if of.GetDropped() {
			r.Wants, r.Queued = nil, 0
		}
	}
	return r
}

// LeaseParty is the agent as the rules of leases see it. The names of resources mean the same
// within its innermost border.
func (r Record) LeaseParty() lease.Party {
	return lease.Party{ID: r.ID, Age: r.Position, Scope: r.StackRoot(), Holds: r.Holds, Wants: r.Wants, Queued: r.Queued}
}

// ForfeitsLeases reports whether the agent holds or asks for something that its state does
// not allow.
func (r Record) ForfeitsLeases() bool {
	return (r.State == Planning || r.State == Pending || r.Over()) && len(r.Holds)+len(r.Wants) > 0
}

// leasesExpire is when the leases of the agent expire unless an incarnation begins. It is
// zero if they do not.
func leasesExpire(r Record, rules Rules) time.Time {
	if r.Incarnation != nil || len(r.Holds) == 0 || r.Queued > 0 || r.Over() {
		return time.Time{}
	}
	since := r.LastAt
	if r.LeasedAt.After(since) {
		since = r.LeasedAt
	}
	return since.Add(rules.LeaseTTL)
}

// expired returns the event that ends all leases of the agent.
func expired(r Record) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_LEASES_EXPIRED,
		Details: &agboxv1.AgentEvent_Lease{Lease: &agboxv1.AgentLeases{
			Leases: Leases(r.Holds), Message: "It had no running program for too long.",
		}},
	}
}

var modes = map[lease.Mode]agboxv1.LeaseMode{
	lease.Shared: agboxv1.LeaseMode_LEASE_MODE_SHARED, lease.Exclusive: agboxv1.LeaseMode_LEASE_MODE_EXCLUSIVE,
}
