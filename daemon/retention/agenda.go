package retention

import (
	"container/heap"
	"time"
)

// agenda says when each of many ids is due next, so that a pass looks at no others.
type agenda struct {
	of    map[string]*entry
	queue queue
}

type entry struct {
	id    string
	at    time.Time
	index int // in the queue
}

// set replaces the time of an id. Zero means that it is not due any more.
func (a *agenda) set(id string, at time.Time) {
	e, known := a.of[id]
	switch {
	case at.IsZero() && !known:
	case at.IsZero():
		heap.Remove(&a.queue, e.index)
		delete(a.of, id)
	case known:
		e.at = at
		heap.Fix(&a.queue, e.index)
	default:
		if a.of == nil {
			a.of = make(map[string]*entry)
		}
		a.of[id] = &entry{id: id, at: at}
		heap.Push(&a.queue, a.of[id])
	}
}

// at is when an id is due; zero means never.
func (a *agenda) at(id string) time.Time {
	if e, known := a.of[id]; known {
		return e.at
	}
	return time.Time{}
}

// take adds the ids that are due to a set, and removes them. all is for those that are not due, too.
func (a *agenda) take(now time.Time, all bool, due map[string]struct{}) {
	for len(a.queue) > 0 && (all || !now.Before(a.queue[0].at)) {
		id := a.queue[0].id
		due[id] = struct{}{}
		a.set(id, time.Time{})
	}
}

// queue implements heap.Interface: the first entry is due first.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
