package lease

import (
	"cmp"
	"slices"
)

// Book has a table with an index, so that a request, a release and a grant look at the agents
// that they concern, and not at all. It decides as Decide does; tests compare it with a look at the
// whole table at each step of random histories. A parked agent holds nothing.
//
// Changes can be taken back, up to the last Keep. A Book is for one goroutine.
type Book struct {
	parties map[string]Party
	places  map[place]*contention
	// undo has the parties as they were before each change since the last Keep.
	undo []Party
	// free are agents that wait for what somebody has let go, in the order of the queue, and
	// callable those that are parked and for which something has changed, oldest first. They
	// are checked when they are taken out.
	free, callable seats
	// looked counts the seats that were looked at. Tests bound it.
	looked int
}

// place is a resource within a scope.
type place struct{ scope, resource string }

// seat is an agent at a place. at is its age, or its place in the queue.
type seat struct {
	at uint64
	id string
}

// seats are sorted by at, and have each once.
type seats []seat

// contention is who holds a resource and who asks for it. The lists are by mode.
type contention struct {
	// held and waited have the ages of those that hold it and of those that wait for it, queue
	// has the latter in the order of the queue, and parked the ages of those that died.
	held, waited, queue, parked [Exclusive + 1]seats
}

// NewBook returns a Book without any agent.
func NewBook() *Book {
	return &Book{parties: make(map[string]Party), places: make(map[place]*contention)}
}

// Keep makes all changes so far permanent.
func (b *Book) Keep() { b.undo = b.undo[:0] }

// TakeBack undoes all changes since the last Keep.
func (b *Book) TakeBack() {
	for _, p := range slices.Backward(b.undo) {
		b.put(p)
	}
	b.free = slices.DeleteFunc(b.free, func(s seat) bool { return b.parties[s.id].Queued != s.at })
	b.callable = slices.DeleteFunc(b.callable, func(s seat) bool { return !b.parties[s.id].parked() })
	for _, changed := range b.undo {
		b.again(b.parties[changed.ID])
	}
	b.undo = b.undo[:0]
}

// again has an agent that waits or is parked checked by Next or Unblocked.
func (b *Book) again(p Party) {
	switch {
	case p.Queued > 0:
		b.free.set(seat{p.Queued, p.ID}, true)
	case p.parked():
		b.callable.set(seat{p.Age, p.ID}, true)
	}
}

// Recheck has Next and Unblocked look at all agents that ask for something.
func (b *Book) Recheck() {
	for _, p := range b.parties {
		b.again(p)
	}
}

// parked reports whether the agent died and has not asked again.
func (p Party) parked() bool { return p.Queued == 0 && len(p.Wants) > 0 }

// Put adds an agent or replaces it. Without leases and wishes it is removed. Wants without
// Queued is an agent that is parked, and would have to be called to ask again.
func (b *Book) Put(p Party) {
	before := b.parties[p.ID]
	before.ID = p.ID
	b.undo = append(b.undo, before)
	b.put(p)
	b.follow(before, p)
}

func (b *Book) put(p Party) {
	b.index(b.parties[p.ID], false)
	if len(p.Holds)+len(p.Wants) == 0 {
		delete(b.parties, p.ID)
		return
	}
	b.parties[p.ID] = p
	b.index(p, true)
}

// index adds or removes the seats of an agent.
func (b *Book) index(p Party, add bool) {
	for _, h := range p.Holds {
		b.seat(p, h.Resource, func(c *contention) { c.held[h.Mode].set(seat{p.Age, p.ID}, add) })
	}
	for _, w := range p.Wants {
		b.seat(p, w.Resource, func(c *contention) {
			if p.Queued == 0 {
				c.parked[w.Mode].set(seat{p.Age, p.ID}, add)
				return
			}
			c.waited[w.Mode].set(seat{p.Age, p.ID}, add)
			c.queue[w.Mode].set(seat{p.Queued, p.ID}, add)
		})
	}
}

func (b *Book) seat(p Party, resource string, change func(*contention)) {
	at := place{p.Scope, resource}
	c := b.places[at]
	if c == nil {
		c = new(contention)
		b.places[at] = c
	}
	if change(c); c.empty() {
		delete(b.places, at)
	}
}

func (c *contention) empty() bool {
	for mode := range c.held {
		if len(c.held[mode])+len(c.waited[mode])+len(c.parked[mode]) > 0 {
			return false
		}
	}
	return true
}

func (s *seats) set(one seat, add bool) {
	at, found := slices.BinarySearchFunc(*s, one.at, func(s seat, at uint64) int { return cmp.Compare(s.at, at) })
	switch {
	case add && !found:
		*s = slices.Insert(*s, at, one)
	case !add && found:
		*s = slices.Delete(*s, at, at+1)
	}
}

// follow notes whom the change of an agent concerns: those that may get now what it has let go,
// those that died because of what has changed, and itself if it is parked now.
func (b *Book) follow(before, after Party) {
	for _, p := range []Party{before, after} {
		for _, h := range p.Holds {
			b.followAt(place{p.Scope, h.Resource}, before, after)
		}
		for _, w := range p.Wants {
			b.followAt(place{p.Scope, w.Resource}, before, after)
		}
	}
	if after.parked() {
		b.again(after)
	}
}

func (b *Book) followAt(at place, before, after Party) {
	heldBefore, waitedBefore := before.modes(at.resource)
	held, waited := after.modes(at.resource)
	c := b.places[at]
	if c == nil || held == heldBefore && waited == waitedBefore && before.Queued == after.Queued {
		return
	}
	var lost Mode
	if held < heldBefore {
		lost = heldBefore
	}
	if left := waited < waitedBefore || before.Queued != after.Queued; left && held < waitedBefore { // else it has got it
		lost = max(lost, waitedBefore)
	}
	if lost > 0 {
		b.free = c.first(b, lost, b.free)
	}
	b.callable = c.spared(b, b.callable)
}

// modes returns in which mode an agent holds a resource, and in which it waits for it; 0 if not.
func (p Party) modes(resource string) (held, waited Mode) {
	if at, found := slices.BinarySearchFunc(p.Holds, resource, func(h Hold, r string) int { return cmp.Compare(h.Resource, r) }); found {
		held = p.Holds[at].Mode
	}
	if p.Queued == 0 {
		return held, 0
	}
	if at, found := slices.BinarySearchFunc(p.Wants, resource, func(c Claim, r string) int { return cmp.Compare(c.Resource, r) }); found {
		waited = p.Wants[at].Mode
	}
	return held, waited
}

// first adds the agents that nobody before them in the queue of a resource keeps from it, now
// that another one has let go of it in that mode. Those that share it did not wait for one that
// shared it too.
func (c *contention) first(b *Book, lost Mode, list seats) seats {
	if holds := c.held[Exclusive]; len(holds) > 0 { // only that one may have more of it
		if p := b.parties[holds[0].id]; p.Queued > 0 {
			list.set(seat{p.Queued, p.ID}, true)
		}
		return list
	}
	alone := c.queue[Exclusive]
	for _, s := range c.queue[Shared] {
		b.looked++
		if lost == Shared || len(alone) > 0 && alone[0].at < s.at {
			break
		}
		list.set(s, true)
	}
	if len(alone) > 0 && (len(c.queue[Shared]) == 0 || alone[0].at < c.queue[Shared][0].at) {
		list.set(alone[0], true)
	}
	return list
}

// spared adds the parked agents that need not die for a resource any more.
func (c *contention) spared(b *Book, list seats) seats {
	for mode := Shared; mode <= Exclusive; mode++ {
		for _, s := range c.parked[mode] {
			b.looked++
			if oldest, any := c.oldest(s.id, mode); any && oldest < s.at {
				break // as it has to, so have all that are younger
			}
			list.set(s, true)
		}
	}
	return list
}

// against are the lists of those that an agent cannot share the resource with.
func (c *contention) against(mode Mode) []seats {
	if mode == Exclusive {
		return []seats{c.held[Exclusive], c.waited[Exclusive], c.held[Shared], c.waited[Shared]}
	}
	return []seats{c.held[Exclusive], c.waited[Exclusive]}
}

// oldest is the least age of those that another agent cannot share the resource with.
func (c *contention) oldest(id string, mode Mode) (age uint64, any bool) {
	for _, list := range c.against(mode) {
		if s, found := list.other(id); found && (!any || s.at < age) {
			age, any = s.at, true
		}
	}
	return age, any
}

// other is the first seat of another agent.
func (s seats) other(id string) (one seat, found bool) {
	for _, one := range s[:min(len(s), 2)] {
		if one.id != id {
			return one, true
		}
	}
	return seat{}, false
}

// Verdict is what Decide says without naming anybody.
func (b *Book) Verdict(self Party, manifest []Claim) Verdict {
	verdict := Granted
	for _, claim := range manifest {
		b.looked++
		c := b.places[place{self.Scope, claim.Resource}]
		if c == nil {
			continue
		}
		switch oldest, any := c.oldest(self.ID, claim.Mode); {
		case any && oldest < self.Age:
			return Die
		case any:
			verdict = Wait
		}
	}
	return verdict
}

// Blockers returns the ids of at most so many of those against which a manifest is decided,
// oldest first, and how many there are.
func (b *Book) Blockers(self Party, manifest []Claim, most int) (ids []string, count int) {
	var all seats
	for _, claim := range manifest {
		if c := b.places[place{self.Scope, claim.Resource}]; c != nil {
			for _, list := range c.against(claim.Mode) {
				all = append(all, list...)
			}
		}
	}
	return b.named(all, self.ID, most)
}

// named sorts agents by age and returns the ids of the first ones, without one of them.
func (b *Book) named(all seats, but string, most int) (ids []string, count int) {
	b.looked += len(all)
	slices.SortFunc(all, func(x, y seat) int { return cmp.Compare(x.at, y.at) })
	all = slices.DeleteFunc(slices.Compact(all), func(s seat) bool { return s.id == but })
	for _, s := range all[:min(len(all), most)] {
		ids = append(ids, s.id)
	}
	return ids, len(all)
}

// Next returns the agent that waits and whose manifest is to be granted now, the first in the queue
// of all such. Put it with that grant, and call Next again, until ok is false. It looks at the agents
// that wait for what was let go since it was called last.
func (b *Book) Next() (id string, ok bool) {
	for len(b.free) > 0 {
		id, b.free = b.free[0].id, b.free[1:]
		if b.grantable(b.parties[id]) {
			return id, true
		}
	}
	return "", false
}

// grantable reports whether an agent waits for nothing that another one holds or waits for
// before it.
func (b *Book) grantable(p Party) bool {
	for _, w := range p.Wants {
		b.looked++
		c := b.places[place{p.Scope, w.Resource}]
		if _, taken := c.held[Exclusive].other(p.ID); taken {
			return false
		}
		if q := c.queue[Exclusive]; len(q) > 0 && q[0].at < p.Queued {
			return false
		}
		if w.Mode == Shared {
			continue
		}
		if _, taken := c.held[Shared].other(p.ID); taken {
			return false
		}
		if q := c.queue[Shared]; len(q) > 0 && q[0].at < p.Queued {
			return false
		}
	}
	return p.Queued > 0
}

// Unblocked returns the oldest parked agent that need not die any more, of those for which
// something has changed since they were returned last. Call it until ok is false.
func (b *Book) Unblocked() (id string, verdict Verdict, ok bool) {
	for len(b.callable) > 0 {
		id, b.callable = b.callable[0].id, b.callable[1:]
		p := b.parties[id]
		if !p.parked() {
			continue
		}
		if verdict = b.Verdict(p, p.Wants); verdict != Die {
			return id, verdict, true
		}
	}
	return "", 0, false
}

// WaitsFor returns the ids of those that an agent has to wait for, oldest first: the holders of what
// conflicts with what it wants, and the agents before it in the queue. It returns nil if the agent
// does not wait.
func (b *Book) WaitsFor(id string) []string {
	p := b.parties[id]
	if p.Queued == 0 {
		return nil
	}
	var all seats
	for _, w := range p.Wants {
		c := b.places[place{p.Scope, w.Resource}]
		for mode := Shared; mode <= Exclusive; mode++ {
			if mode == Shared && w.Mode == Shared {
				continue
			}
			all = append(all, c.held[mode]...)
			for _, s := range c.queue[mode] {
				if s.at >= p.Queued {
					break
				}
				all = append(all, seat{b.parties[s.id].Age, s.id})
			}
		}
	}
	ids, _ := b.named(all, id, len(all))
	return ids
}
