package server

import (
	"slices"
	"sync"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// typing knows who may type into which exec. It is only in memory: after a restart of the
// daemon, clients report that they typed, and get the right back.
type typing struct {
	// mu guards execs and everything in them. It is held only for map operations.
	mu    sync.Mutex
	execs map[string]*seats
}

// seats are the clients attached to one exec that type or want to.
type seats struct {
	// typists may type. There are several only if all but one share.
	typists []*seat
	// waiting get the right when it becomes free, the one that waits longest first.
	waiting []*seat
}

// seat is the place of one attached client.
type seat struct {
	execID string
	writer string
	// mode is the mode of its request.
	mode agboxv1.InputMode
	// held means that only TAKE_OVER takes the right away, not typed.
	held bool
	// changed gets a value when the right may have been granted or revoked.
	changed chan struct{}
}

func (s *seat) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// enter gives a client a seat. typed means that it had the right when its connection
// broke. It then takes precedence over a client that got the right only because it was
// free.
func (t *typing) enter(execID, writer string, mode agboxv1.InputMode, typed bool) *seat {
	s := &seat{
		execID: execID, writer: writer, mode: mode, changed: make(chan struct{}, 1),
		held: typed || mode == agboxv1.InputMode_INPUT_MODE_TAKE_OVER,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.execs == nil {
		t.execs = make(map[string]*seats)
	}
	at := t.execs[execID]
	if at == nil {
		at = new(seats)
		t.execs[execID] = at
	}
	if i := slices.IndexFunc(at.typists, s.isAgain); i >= 0 {
		at.revoke(at.typists[i]) // its own earlier connection, whose loss is not known yet
	}
	switch {
	case mode == agboxv1.InputMode_INPUT_MODE_TAKE_OVER:
		at.replace(true)
		at.grant(s)
	case mode == agboxv1.InputMode_INPUT_MODE_SHARED, len(at.typists) == 0:
		at.grant(s)
	case typed && !slices.ContainsFunc(at.typists, (*seat).insists):
		at.replace(false)
		at.grant(s)
	default:
		at.waiting = append(at.waiting, s)
	}
	return s
}

func (s *seat) isAgain(other *seat) bool { return other.writer == s.writer }

func (s *seat) shares() bool { return s.mode == agboxv1.InputMode_INPUT_MODE_SHARED }

func (s *seat) insists() bool { return s.held && !s.shares() }

// replace makes the typists wait again; those that share only if sharing says so.
func (at *seats) replace(sharing bool) {
	for _, other := range slices.Clone(at.typists) {
		if sharing || !other.shares() {
			at.revoke(other)
			at.waiting = append(at.waiting, other)
		}
	}
}

func (at *seats) grant(s *seat) {
	at.typists = append(at.typists, s)
	at.wakeAll()
}

func (at *seats) grantWaiting(s *seat) {
	at.waiting = slices.DeleteFunc(at.waiting, func(other *seat) bool { return other == s })
	at.grant(s)
}

func (at *seats) revoke(s *seat) {
	at.typists = slices.DeleteFunc(at.typists, func(other *seat) bool { return other == s })
	s.held = false
	s.wake()
}

// wakeAll wakes all clients, because all are told who types.
func (at *seats) wakeAll() {
	for _, s := range at.typists {
		s.wake()
	}
	for _, s := range at.waiting {
		s.wake()
	}
}

// leave gives the seat up. A right that becomes free goes to the client that waits
// longest. Leaving again has no effect.
func (t *typing) leave(s *seat) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.execs[s.execID]
	if at == nil {
		return
	}
	at.revoke(s)
	at.waiting = slices.DeleteFunc(at.waiting, func(other *seat) bool { return other == s })
	if len(at.typists) == 0 && len(at.waiting) > 0 {
		at.grantWaiting(at.waiting[0])
	}
	if !slices.ContainsFunc(at.typists, (*seat).insists) {
		for _, other := range slices.Clone(at.waiting) {
			if other.shares() { // it waits only for the client that took over
				at.grantWaiting(other)
			}
		}
	}
	at.wakeAll()
	if len(at.typists) == 0 {
		delete(t.execs, s.execID)
	}
}

// may reports whether a client may type, and returns the writer who may.
func (t *typing) may(s *seat) (granted bool, typist string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.execs[s.execID]
	return at != nil && slices.Contains(at.typists, s), t.typistLocked(s.execID)
}

// typist returns the writer who may type into an exec, or "".
func (t *typing) typist(execID string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.typistLocked(execID)
}

func (t *typing) typistLocked(execID string) string {
	if at := t.execs[execID]; at != nil && len(at.typists) > 0 {
		return at.typists[0].writer
	}
	return ""
}
