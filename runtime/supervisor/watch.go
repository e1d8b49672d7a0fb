package supervisor

import (
	"context"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/supervisor/rpc"
)

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

// watch calls watching, then sends the record of each asked exec that is not running,
// then every exit. It subscribes before it reads the records, so it misses no exit. An
// exec that ends in between is sent once.
func (s *Supervisor) watch(ctx context.Context, asked []string, watching func() error, send func(*guestv1.ExecRecord) error) error {
	w := s.registry.subscribe()
	if w == nil {
		return rpc.Errorf(rpc.ResourceExhausted, "more than %d watchers; close one", maxWatchers)
	}
	defer s.registry.unsubscribe(w)
	if err := watching(); err != nil {
		return err
	}

	sent := make(map[*guestv1.ExecRecord]bool)
	for _, id := range asked {
		record := s.lookup(id)
		if s.runsHere(record) {
			continue
		}
		sent[record] = true
		if err := send(record); err != nil {
			return err
		}
	}
	// Only exits in the buffer by now can be duplicates.
	twice := len(w.exits)
	for {
		select {
		case record, ok := <-w.exits:
			if !ok {
				return rpc.Errorf(rpc.Aborted, "the watch was too slow or the supervisor stops; watch again")
			}
			if twice > 0 {
				if twice--; sent[record] {
					continue
				}
			}
			if err := send(record); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lookup returns the record of an exec, from memory or from its status file.
func (s *Supervisor) lookup(id string) *guestv1.ExecRecord {
	e, record := s.registry.get(id)
	if e == nil {
		if record = s.readStatus(id); record == nil {
			record = &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_UNKNOWN}
		}
		return record
	}
	if record == nil { // being started: it will run, or its failure is sent to the watchers
		record = &guestv1.ExecRecord{ExecId: id, Phase: guestv1.ExecPhase_EXEC_PHASE_RUNNING, BootId: s.bootID}
	}
	return record
}

// runsHere reports whether the record is of a process that this supervisor runs. A
// process that ran under an earlier supervisor is lost.
func (s *Supervisor) runsHere(r *guestv1.ExecRecord) bool {
	return r.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_RUNNING && r.GetBootId() == s.bootID
}
