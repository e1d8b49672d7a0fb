package agents

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/agents/lease"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// informed reports whether the agent has been woken, and the event says that it has taken the
// observation of what changed meanwhile. Without that it may not go on.
func (r Record) informed(ev *agboxv1.AgentEvent) bool {
	return r.Pause != nil && r.Pause.Woken && !r.AwaitsApproval() && ev.GetObservation() == r.Pause.Observation
}

// PendingObservation is the observation that the agent must take before it goes on, or 0.
func (r Record) PendingObservation() uint64 {
	if r.State != Paused || !r.Pause.Woken {
		return 0
	}
	return r.Pause.Observation
}

// DigestMissing reports whether the agent is paused and its program, which could have, has not
// saved a digest of that. The newest other checkpoint counts then.
func (r Record) DigestMissing() bool {
	if r.State != Paused || r.Digested {
		return false
	}
	return r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_CONFLICT || r.Pause.Reason == agboxv1.PauseReason_PAUSE_REASON_APPROVAL
}

// dropDigests marks the digests of pauses among checkpoints as dropped.
func dropDigests(list []*agboxv1.AgentCheckpoint) []*agboxv1.AgentCheckpoint {
	list = slices.Clone(list)
	for i, c := range list {
		if c.GetKind() == agboxv1.CheckpointKind_CHECKPOINT_KIND_PAUSE {
			list[i] = proto.CloneOf(c)
			list[i].Dropped = true
		}
	}
	return list
}

// UsableCheckpoints are those with which an incarnation can begin, oldest first.
func (r Record) UsableCheckpoints() []*agboxv1.AgentCheckpoint {
	return slices.DeleteFunc(slices.Clone(r.Checkpoints), func(c *agboxv1.AgentCheckpoint) bool { return c.GetDropped() })
}

// Picture is how the surroundings of an agent are at a time.
type Picture struct {
	// Surroundings is what the daemon knows.
	Surroundings *agboxv1.AgentPicture
	// Files has the files of the manifest by their paths; nil if nobody has looked.
	Files map[string]journal.File
	// Limits are those that the kernel applies, by what they limit: cpu, memory,
	// pids; nil if nobody has looked.
	Limits map[string]string
}

// Change is something that is not as it was.
type Change struct {
	// Name is a path, the name of a service or the name of a limit.
	Name string `json:"name"`
	// What is one of the words below, or empty for limits.
	What string `json:"what,omitempty"`
	// Before and Now are the values of a limit.
	Before string `json:"before,omitempty"`
	Now    string `json:"now,omitempty"`
}

// What has changed.
const (
	Changed   = "changed"
	Created   = "created"
	Removed   = "deleted"
	Unknown   = "unknown"
	Restarted = "restarted"
	Remade    = "remade"
)

// Changes are the differences between two pictures.
type Changes struct {
	Files    []Change `json:"files"`
	Services []Change `json:"services"`
	// Container is Remade, Restarted or empty.
	Container string   `json:"container,omitempty"`
	Limits    []Change `json:"limits"`
}

// Compare returns what changed between two pictures. It names a file as Unknown if only one
// of them, or neither, has it.
func Compare(before, now Picture) Changes {
	was, is := before.Surroundings, now.Surroundings
	c := Changes{Files: []Change{}, Services: []Change{}, Limits: []Change{}}
	switch {
	case was == nil || is == nil:
	case was.GetSandboxId() != is.GetSandboxId():
		c.Container = Remade
	case !was.GetReadyAt().AsTime().Equal(is.GetReadyAt().AsTime()):
		c.Container = Restarted
	}
	for _, path := range keys(before.Files, now.Files) {
		a, seenBefore := before.Files[path]
		b, seenNow := now.Files[path]
		if what := fileChange(a, b); !seenBefore || !seenNow {
			c.Files = append(c.Files, Change{Name: path, What: Unknown})
		} else if what != "" {
			c.Files = append(c.Files, Change{Name: path, What: what})
		}
	}
	for _, name := range keys(was.GetServices(), is.GetServices()) {
		if was != nil && is != nil && was.GetServices()[name] != is.GetServices()[name] {
			c.Services = append(c.Services, Change{Name: name, What: Restarted})
		}
	}
	if was.GetImage() != is.GetImage() && was != nil && is != nil {
		c.Limits = append(c.Limits, Change{Name: "image", Before: was.GetImage(), Now: is.GetImage()})
	}
	if was != nil && is != nil {
		c.Limits = append(c.Limits, differences(was.GetLimits(), is.GetLimits())...)
	}
	if before.Limits != nil && now.Limits != nil {
		c.Limits = append(c.Limits, differences(before.Limits, now.Limits)...)
	}
	return c
}

// fileChange says what became of a file; empty if it is as it was. A file with the same content
// has not changed, even if it was written again.
func fileChange(f, now journal.File) string {
	switch {
	case f == now:
		return ""
	case f.Exists && !now.Exists:
		return Removed
	case !f.Exists:
		return Created
	case f.Sum != "" && f.Sum == now.Sum && f.Size == now.Size:
		return ""
	}
	return Changed
}

func differences(before, now map[string]string) (list []Change) {
	for _, name := range keys(before, now) {
		if before[name] != now[name] {
			list = append(list, Change{Name: name, Before: before[name], Now: now[name]})
		}
	}
	return list
}

// keys returns the keys of both maps in their order.
func keys[V any](a, b map[string]V) []string {
	var list []string
	for _, m := range []map[string]V{a, b} {
		for key := range m {
			list = append(list, key)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Files are the paths of the files that the agent holds or asks for, in their order.
func (r Record) Files() []string {
	var list []string
	add := func(resource string) {
		if path, is := strings.CutPrefix(resource, "file:"); is {
			list = append(list, path)
		}
	}
	for _, h := range r.Holds {
		add(h.Resource)
	}
	for _, c := range r.Wants {
		add(c.Resource)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Lost returns the resources that were held before, and are not held now or were granted anew.
func Lost(before []*agboxv1.AgentLease, now []lease.Hold) []string {
	lost := []string{}
	for _, l := range before {
		if !slices.ContainsFunc(now, func(h lease.Hold) bool { return h.Resource == l.GetResource() && h.Fence == l.GetFence() }) {
			lost = append(lost, l.GetResource())
		}
	}
	return lost
}

// Passed is a resource of an agent that others held while it was paused.
type Passed struct {
	Resource string `json:"resource"`
	// Times is how often others got it in that time.
	Times int `json:"times"`
	// Fence is the highest fencing number that another of them had.
	Fence uint64 `json:"fence"`
	// Holders are those who held it last, at most maxPassed, newest first.
	Holders []PassedTo `json:"holders"`
}

// PassedTo is another agent that held a resource.
type PassedTo struct {
	AgentID string `json:"agent_id"`
	Name    string `json:"name"`
	// Times is 0 for one who had it already when the pause began.
	Times int    `json:"times"`
	Fence uint64 `json:"fence"`
}

// maxPassed is how many holders of a resource are named.
const maxPassed = 16

// Meanwhile gathers who held the resources of an agent since a position.
type Meanwhile struct {
	since uint64
	// fences has the fencing numbers by resource and agent.
	fences map[string]map[string][]uint64
}

// NewMeanwhile makes a Meanwhile for the agent's pause: for what it held then, and for what it
// holds and asks for now.
func NewMeanwhile(r Record) *Meanwhile {
	m := &Meanwhile{r.AwayFrom, make(map[string]map[string][]uint64)}
	for _, l := range r.Away.GetLeases() {
		m.fences[l.GetResource()] = make(map[string][]uint64)
	}
	for _, c := range append(lease.Claimed(r.Holds), r.Wants...) {
		m.fences[c.Resource] = make(map[string][]uint64)
	}
	return m
}

// Empty reports whether the agent has no resources that others could have had.
func (m *Meanwhile) Empty() bool { return len(m.fences) == 0 }

// Saw takes an event of another agent after the position into account.
func (m *Meanwhile) Saw(ev *agboxv1.AgentEvent) {
	list := ev.GetLease().GetLost()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_GRANTED, agboxv1.AgentEventType_AGENT_RELEASED, agboxv1.AgentEventType_AGENT_LEASES_EXPIRED:
		list = ev.GetLease().GetLeases()
	}
	for _, l := range list {
		m.had(ev.GetAgentId(), l.GetResource(), cmp.Or(l.GetFence(), ev.GetPosition()))
	}
}

// Holds takes into account what another agent holds now.
func (m *Meanwhile) Holds(id string, holds []lease.Hold) {
	for _, h := range holds {
		m.had(id, h.Resource, h.Fence)
	}
}

func (m *Meanwhile) had(id, resource string, fence uint64) {
	if by := m.fences[resource]; by != nil && !slices.Contains(by[id], fence) {
		by[id] = append(by[id], fence)
	}
}

// Passed returns the resources that others held, sorted, with names of the agents.
func (m *Meanwhile) Passed(name func(id string) string) []Passed {
	list := []Passed{}
	for _, resource := range keys(m.fences, nil) {
		p := Passed{Resource: resource}
		for id, fences := range m.fences[resource] {
			to := PassedTo{AgentID: id, Name: name(id), Fence: slices.Max(fences)}
			for _, fence := range fences {
				if fence > m.since {
					to.Times++
				}
			}
			p.Times, p.Fence = p.Times+to.Times, max(p.Fence, to.Fence)
			p.Holders = append(p.Holders, to)
		}
		slices.SortFunc(p.Holders, func(a, b PassedTo) int { return cmp.Compare(b.Fence, a.Fence) })
		p.Holders = p.Holders[:min(len(p.Holders), maxPassed)]
		if len(p.Holders) > 0 {
			list = append(list, p)
		}
	}
	return list
}
