package supervisor

import (
	"sync"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// keepFinished is how many finished execs are kept in memory. Older ones are read
	// from their status files.
	keepFinished = 1024
	// watchBuffer is how many exits a watcher may lag behind.
	watchBuffer = 256
	// maxWatchers bounds the watchers, because each uses memory.
	maxWatchers = 32
)

// execution is one exec from the moment its id is claimed.
type execution struct {
	id string
	// decided is closed when record is set for the first time: the process runs, could
	// not be started, or was found in a status file.
	decided chan struct{}
	// ended is closed when the record is final.
	ended chan struct{}

	// Guarded by registry.mu:

	// record is replaced, never modified.
	record *guestv1.ExecRecord
	// child is the process, or nil if none runs.
	child *child
	// input is the standard input or terminal that the process has or had, or nil if it
	// has none.
	input *input
	// killAt is when the rest of the tree is killed. It is zero if no kill is planned.
	killAt time.Time
	// hurry signals the goroutine that waits for killAt that killAt is earlier now. It is
	// made together with killAt.
	hurry chan struct{}
}

// registry has the execs and the watchers of the supervisor.
type registry struct {
	// mu guards everything below and the marked fields of executions. It is never
	// held across I/O.
	mu       sync.Mutex
	execs    map[string]*execution
	finished []string // ids, oldest first
	watchers map[*watcher]struct{}
	// dismissed is true once watchers get nothing more.
	dismissed bool
	closed    bool
}

func newRegistry() *registry {
	return &registry{
		execs:    make(map[string]*execution),
		watchers: make(map[*watcher]struct{}),
	}
}

// claim returns the exec with that id. mine is true for the one caller that must start
// it; work is then incremented. It returns nil once the supervisor stops.
func (r *registry) claim(id string, work *sync.WaitGroup) (e *execution, mine bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.execs[id]; e != nil {
		return e, false
	}
	if r.closed {
		return nil, false
	}
	e = &execution{
		id:      id,
		decided: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	r.execs[id] = e
	work.Add(1)
	return e, true
}

// close refuses new execs from now on.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// enter increments work, unless the supervisor stops.
func (r *registry) enter(work *sync.WaitGroup) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	work.Add(1)
	return true
}

// running records that the process of e was started.
func (r *registry) running(e *execution, ch *child, in *input, record *guestv1.ExecRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.child, e.input, e.record = ch, in, record
	close(e.decided)
}

// finish sets the final record of e and sends it to the watchers.
func (r *registry) finish(e *execution, record *guestv1.ExecRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.record == nil {
		close(e.decided)
	}
	e.record, e.child = record, nil
	close(e.ended)
	for w := range r.watchers {
		select {
		case w.exits <- record:
		default: // too slow: its client watches again
			r.dropLocked(w)
		}
	}
	r.finished = append(r.finished, e.id)
	if len(r.finished) > keepFinished {
		delete(r.execs, r.finished[0])
		// The slice grows at its end and is cut at its start. When its capacity is used
		// up, append copies only what is left.
		r.finished = r.finished[1:]
	}
}

// get returns an exec and its current record, or nil if it is not in memory.
func (r *registry) get(id string) (*execution, *guestv1.ExecRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.execs[id]
	if e == nil {
		return nil, nil
	}
	return e, e.record
}

// recordOf returns the current record of e.
func (r *registry) recordOf(e *execution) *guestv1.ExecRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.record
}

// childOf returns the process of e, or nil if none runs.
func (r *registry) childOf(e *execution) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.child
}

// inputOf returns the input of e, or nil if it has none.
func (r *registry) inputOf(e *execution) *input {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.input
}

// planKill sets the time at which the tree of e is killed, unless an earlier one is set.
// It returns true for the caller that must perform the kill; work is then incremented.
func (r *registry) planKill(e *execution, at time.Time, work *sync.WaitGroup) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed { // the stop kills everything
		return false
	}
	if e.killAt.IsZero() {
		e.killAt, e.hurry = at, make(chan struct{}, 1)
		work.Add(1)
		return true
	}
	if at.Before(e.killAt) {
		e.killAt = at
		select {
		case e.hurry <- struct{}{}:
		default: // it has not handled the last signal yet and will read the new killAt
		}
	}
	return false
}

// killTime returns when the tree of e must be killed, and a channel that signals an
// earlier time.
func (r *registry) killTime(e *execution) (at time.Time, hurry <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.killAt, e.hurry
}

// killDone allows a later cancel to plan another kill.
func (r *registry) killDone(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.killAt = time.Time{}
}

// watcher receives the exits that happen while it is subscribed.
type watcher struct {
	// exits is closed if the watcher was too slow, or when the supervisor stops.
	exits chan *guestv1.ExecRecord
}

// subscribe adds a watcher. It returns nil if there are too many.
func (r *registry) subscribe() *watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.watchers) >= maxWatchers {
		return nil
	}
	w := &watcher{exits: make(chan *guestv1.ExecRecord, watchBuffer)}
	r.watchers[w] = struct{}{}
	if r.dismissed {
		r.dropLocked(w)
	}
	return w
}

// unsubscribe removes a watcher. It may have been dropped already.
func (r *registry) unsubscribe(w *watcher) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropLocked(w)
}

// dismissWatchers ends all watches, also later ones, once they have sent what is queued.
// No exit follows any more, and the stop waits for the calls.
func (r *registry) dismissWatchers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dismissed = true
	for w := range r.watchers {
		r.dropLocked(w)
	}
}

func (r *registry) dropLocked(w *watcher) {
	if _, ok := r.watchers[w]; ok {
		delete(r.watchers, w)
		close(w.exits)
	}
}
