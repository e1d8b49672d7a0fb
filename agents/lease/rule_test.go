package lease

import (
	"cmp"
	"slices"
)

// Here is the part of the rule that only Book applies, as a look at the whole table. Tests compare
// the two, and explore this one.

// next returns the agent that waits and whose manifest is to be granted now, the first in
// the queue of all such. Call it again with the table after that grant, until ok is false.
// It is to be called after each release.
func next(table []Party) (id string, ok bool) {
	queue := waiting(table)
	for i, p := range queue {
		before := func(q Party) bool { return q.Scope == p.Scope && conflict(q.Wants, p.Wants) }
		if !blocked(table, p) && !slices.ContainsFunc(queue[:i], before) {
			return p.ID, true
		}
	}
	return "", false
}

// theParked returns the ids of the agents that died and have not asked again, oldest first.
func theParked(table []Party) []string {
	var all []Party
	for _, p := range table {
		if p.Queued == 0 && len(p.Wants) > 0 {
			all = append(all, p)
		}
	}
	return oldestFirst(all)
}

// waitsFor returns the ids of those that an agent has to wait for, oldest first: the holders
// of what conflicts with what it wants, and the agents before it in the queue. It returns nil
// if the agent does not wait.
func waitsFor(table []Party, p Party) []string {
	if p.Queued == 0 {
		return nil
	}
	var against []Party
	for _, q := range table {
		before := q.Queued > 0 && q.Queued < p.Queued && conflict(q.Wants, p.Wants)
		if q.ID != p.ID && q.Scope == p.Scope && (before || holds(q, p.Wants)) {
			against = append(against, q)
		}
	}
	return oldestFirst(against)
}

// waiting returns the agents that wait, in the order of the queue.
func waiting(table []Party) []Party {
	var queue []Party
	for _, p := range table {
		if p.Queued > 0 {
			queue = append(queue, p)
		}
	}
	slices.SortFunc(queue, func(a, b Party) int { return cmp.Compare(a.Queued, b.Queued) })
	return queue
}

// blocked reports whether another agent holds what conflicts with what p wants.
func blocked(table []Party, p Party) bool {
	return slices.ContainsFunc(table, func(q Party) bool { return q.ID != p.ID && q.Scope == p.Scope && holds(q, p.Wants) })
}
