// Package lease decides who may hold which resources, as pure functions over a table of
// all agents that hold or ask for any. It performs no I/O and does not read the clock.
//
// The rule is wait-die: an agent asks for all resources of its manifest at once. It may
// wait only for agents that are younger than itself; otherwise it dies: it loses all that
// it holds, keeps its age, and asks again later. So no circle of agents can wait for each
// other. What an agent has to wait for are the holders of conflicting leases and also all
// agents that wait for conflicting ones. With holders alone, or with holders and older
// waiters, there are states from which nobody can go on; the tests of this package explore
// all states of small worlds and find them.
package lease

import (
	"cmp"
	"slices"
	"strings"
)

// Mode says with whom a lease can be shared.
type Mode uint8

// The modes. Of two modes for one resource the greater one counts.
const (
	Shared    Mode = 1
	Exclusive Mode = 2
)

// Claim is a resource that an agent asks for.
type Claim struct {
	Resource string
	Mode     Mode
}

// Hold is a resource that an agent holds.
type Hold struct {
	Claim
	// Fence is the fencing number: greater than that of every earlier grant of the resource
	// with another mode or to another agent.
	Fence uint64
}

// Party is an agent that holds or asks for resources.
type Party struct {
	ID string
	// Age is less for older agents. No two agents have the same, and it never changes.
	Age uint64
	// Scope separates agents that share no resources: names mean the same only in one scope.
	Scope string
	// Holds and Wants are sorted by resource, and have each resource once.
	Holds []Hold
	// Wants is the manifest that was not granted yet, or nil.
	Wants []Claim
	// Queued is the place in the queue of an agent that waits for Wants; a lower number came
	// earlier. 0 means that it does not wait: it asks for nothing, or it died and is parked.
	Queued uint64
}

// Verdict is the answer to a request.
type Verdict uint8

// The verdicts.
const (
	// Granted means that the agent holds its manifest from now on.
	Granted Verdict = iota + 1
	// Wait means that it is queued and keeps what it holds.
	Wait
	// Die means that it loses what it holds and has to ask again.
	Die
)

// Decide answers the request of an agent for a manifest, whole or not at all. others has
// all other agents of the table, in any order. blockers are the ids of those that hold or
// wait for something that conflicts, oldest first; Granted has none.
func Decide(others []Party, self Party, manifest []Claim) (verdict Verdict, blockers []string) {
	var against []Party
	for _, p := range others {
		if p.ID != self.ID && p.Scope == self.Scope && (holds(p, manifest) || p.Queued > 0 && conflict(p.Wants, manifest)) {
			against = append(against, p)
		}
	}
	blockers, verdict = oldestFirst(against), Granted
	if len(against) > 0 {
		verdict = Wait
		if against[0].Age < self.Age {
			verdict = Die
		}
	}
	return verdict, blockers
}

// Contested returns the first resource for which the two lists conflict, or "".
func Contested(a, b []Claim) string {
	for _, c := range a {
		if conflict([]Claim{c}, b) {
			return c.Resource
		}
	}
	return ""
}

// Claimed returns what is held without the fencing numbers.
func Claimed(holds []Hold) []Claim {
	var claims []Claim
	for _, h := range holds {
		claims = append(claims, h.Claim)
	}
	return claims
}

func oldestFirst(list []Party) []string {
	slices.SortFunc(list, func(a, b Party) int { return cmp.Compare(a.Age, b.Age) })
	var ids []string
	for _, p := range list {
		ids = append(ids, p.ID)
	}
	return ids
}

// Merge returns what an agent holds after a manifest was granted. What it held before in
// the same or a greater mode keeps its fencing number; everything else gets fence.
func Merge(before []Hold, manifest []Claim, fence uint64) []Hold {
	after := slices.Clone(before)
	for _, c := range manifest {
		at, held := slices.BinarySearchFunc(after, c.Resource, func(h Hold, r string) int { return strings.Compare(h.Resource, r) })
		switch {
		case !held:
			after = slices.Insert(after, at, Hold{Claim: c, Fence: fence})
		case after[at].Mode < c.Mode:
			after[at] = Hold{Claim: c, Fence: fence}
		}
	}
	return after
}

// Covers reports whether the holds include the manifest.
func Covers(holds []Hold, manifest []Claim) bool {
	return !slices.ContainsFunc(manifest, func(c Claim) bool {
		at, held := slices.BinarySearchFunc(holds, c.Resource, func(h Hold, r string) int { return strings.Compare(h.Resource, r) })
		return !held || holds[at].Mode < c.Mode
	})
}

// Normal returns a manifest sorted by resource, each once and with its greatest mode.
func Normal(manifest []Claim) []Claim {
	sorted := slices.Clone(manifest)
	slices.SortFunc(sorted, func(a, b Claim) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), cmp.Compare(b.Mode, a.Mode))
	})
	return slices.CompactFunc(sorted, func(a, b Claim) bool { return a.Resource == b.Resource })
}

// holds reports whether the agent holds what conflicts with the claims of another.
func holds(p Party, claims []Claim) bool {
	for i, j := 0, 0; i < len(p.Holds) && j < len(claims); {
		switch h, c := p.Holds[i], claims[j]; {
		case h.Resource < c.Resource:
			i++
		case h.Resource > c.Resource:
			j++
		case h.Mode == Exclusive || c.Mode == Exclusive:
			return true
		default:
			i, j = i+1, j+1
		}
	}
	return false
}

// conflict reports whether two agents cannot hold the two lists at the same time.
func conflict(a, b []Claim) bool {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch x, y := a[i], b[j]; {
		case x.Resource < y.Resource:
			i++
		case x.Resource > y.Resource:
			j++
		case x.Mode == Exclusive || y.Mode == Exclusive:
			return true
		default:
			i, j = i+1, j+1
		}
	}
	return false
}
