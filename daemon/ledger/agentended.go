package ledger

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// ending is the end of an agent.
type ending struct {
	at time.Time
	id string
}

func (e ending) compare(other ending) int {
	return cmp.Or(e.at.Compare(other.at), cmp.Compare(e.id, other.id))
}

// endLocked follows the change of an agent. New ends are mostly at the end of the list, and
// those of agents that are deleted at its beginning.
func (b *agentBook) endLocked(before, after Agent) {
	if before.Over() {
		if at, known := slices.BinarySearchFunc(b.ended, ending{before.EndedAt, before.ID}, ending.compare); known && at == 0 {
			b.ended = b.ended[1:]
		} else if known {
			b.ended = slices.Delete(b.ended, at, at+1)
		}
	}
	if after.Over() && !after.Deleted {
		e := ending{after.EndedAt, after.ID}
		at, _ := slices.BinarySearchFunc(b.ended, e, ending.compare)
		b.ended = slices.Insert(b.ended, at, e)
	}
}

// endedByLocked is how many agents ended at a time or before.
func (b *agentBook) endedByLocked(at time.Time) int {
	return sort.Search(len(b.ended), func(i int) bool { return b.ended[i].at.After(at) })
}

// EndedBeyond returns the ended agents, oldest first, that ended at the time old or before, and
// of those that ended at the time settled or before the ones that ended first, as many as there
// are more than most in all.
func (l *Ledger) EndedBeyond(old, settled time.Time, most int) []Agent {
	b := &l.agents
	b.mu.RLock()
	first := b.ended[:max(b.endedByLocked(old), min(len(b.ended)-most, b.endedByLocked(settled)))]
	list := make([]Agent, 0, len(first))
	for _, e := range first {
		list = append(list, b.all[e.id])
	}
	b.mu.RUnlock()
	b.copied.Add(uint64(len(list)))
	return oldestFirst(list)
}
