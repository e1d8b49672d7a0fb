package supervisor

import (
	"sync"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// keepFinished is how many finished execs are remembered; the status files
	// answer for older ones.
	keepFinished = 1024
	// watchBuffer is how many exits a watcher may be behind.
	watchBuffer = 256
	// maxWatchers bounds what watchers can hold in memory.
	maxWatchers = 32
)

// execution is one exec from the moment its id is claimed.
type execution struct {
	id string
	// decided is closed when record is set for the first time: the process runs,
	// could not be started, or was found in a status file.
	decided chan struct{}
	// ended is closed when the record is final.
	ended chan struct{}

	// Guarded by registry.mu:

	// record is replaced, never changed.
	record *guestv1.ExecRecord
	// child is the process; nil unless one runs.
	child *child
	// input is the standard input or terminal that the process has or had; nil
	// without one.
	input *input
	// killAt is when what is left of the tree is killed; zero when nobody asked.
	killAt time.Time
	// hurry tells the goroutine that waits for killAt that it came nearer; made
	// with it.
	hurry chan struct{}
}

// registry is all that the supervisor knows of execs and watchers.
type registry struct {
	// mu guards everything below and the marked fields of executions. It is never
	// held across I/O.
	mu       sync.Mutex
	execs    map[string]*execution
	finished []string // ids, oldest first
	watchers map[*watcher]struct{}
	// dismissed is true once watchers are told nothing more.
	dismissed bool
	closed    bool
}

func newRegistry() *registry {
	return &registry{
		execs:    make(map[string]*execution),
		watchers: make(map[*watcher]struct{}),
	}
}

// claim returns the exec of that id. mine is true for the one caller that has to
// start it; work is then counted up. It returns nil once the supervisor stops.
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

// running records that the process of e was started.
func (r *registry) running(e *execution, ch *child, in *input, record *guestv1.ExecRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.child, e.input, e.record = ch, in, record
	close(e.decided)
}

// finish sets the final record of e and tells the watchers.
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
		default: // too slow: it comes back and asks again
			r.dropLocked(w)
		}
	}
	r.finished = append(r.finished, e.id)
	if len(r.finished) > keepFinished {
		delete(r.execs, r.finished[0])
		// The slice grows at its end and is cut at its start; append copies what is
		// left when the room behind it is used up.
		r.finished = r.finished[1:]
	}
}

// get returns an exec and its record as it is now; nil if it is not in memory.
func (r *registry) get(id string) (*execution, *guestv1.ExecRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.execs[id]
	if e == nil {
		return nil, nil
	}
	return e, e.record
}

// recordOf returns the record of e as it is now.
func (r *registry) recordOf(e *execution) *guestv1.ExecRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.record
}

// childOf returns the process of e; nil if none runs.
func (r *registry) childOf(e *execution) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.child
}

// inputOf returns the input of e; nil if it has none.
func (r *registry) inputOf(e *execution) *input {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.input
}

// planKill sets the time at which the tree of e is killed, unless an earlier one
// is set. It returns true for the caller that has to see to it; work is then
// counted up.
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
		default: // it has not yet seen the last one and will read killAt then
		}
	}
	return false
}

// killTime returns when the tree of e is to be killed, and what tells that the
// time came nearer.
func (r *registry) killTime(e *execution) (at time.Time, hurry <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.killAt, e.hurry
}

// killDone lets a later cancel plan another kill.
func (r *registry) killDone(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.killAt = time.Time{}
}
