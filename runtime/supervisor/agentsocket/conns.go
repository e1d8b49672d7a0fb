package agentsocket

import (
	"slices"
	"time"
)

// add takes a new connection. It returns false if the server is closed.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns.fresh = append(s.conns.fresh, c)
	s.boundFreshLocked()
	return true
}

// boundFreshLocked ends the oldest connections without an incarnation if there are too
// many.
func (s *Server) boundFreshLocked() {
	idle := slices.Concat(s.conns.left, s.conns.fresh)
	for _, c := range idle[:max(0, len(idle)-maxFresh)] {
		_ = c.Close() // its goroutine removes it
	}
}

// remove forgets a connection and closes it.
func (s *Server) remove(c *conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns.left, s.conns.fresh = without(s.conns.left, c), without(s.conns.fresh, c)
	if c.owner == nil {
		return
	}
	if s.conns.owned[c.owner] = without(s.conns.owned[c.owner], c); len(s.conns.owned[c.owner]) == 0 {
		delete(s.conns.owned, c.owner)
	}
}

func without(list []*conn, c *conn) []*conn {
	return slices.DeleteFunc(list, func(other *conn) bool { return other == c })
}

// callerOf learns which exec has made a connection.
func (s *Server) callerOf(c *conn) {
	c.unknown = true
	if s.cfg.Caller != nil {
		exec, known := s.cfg.Caller(c.UnixConn)
		c.exec, c.unknown = exec, !known
	}
}

// identify returns the running incarnation with that token, if a process of it has made the
// connection. A connection without an incarnation belongs to that one from then on.
func (s *Server) identify(c *conn, token string) (*incarnation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.byToken[token]
	switch {
	case in == nil:
		return nil, refused(codeToken)
	case !c.unknown && c.exec != in.execID:
		return nil, refused(codeCaller)
	case c.owner != nil:
		return in, nil
	case len(s.conns.owned[in]) >= maxOwned:
		return nil, refused(codeBusy)
	}
	c.owner = in
	s.conns.left, s.conns.fresh = without(s.conns.left, c), without(s.conns.fresh, c)
	s.conns.owned[in] = append(s.conns.owned[in], c)
	return in, c.SetReadDeadline(time.Time{})
}

// disownLocked takes the connections from an incarnation that has ended: processes that it
// left behind may have them.
func (s *Server) disownLocked(in *incarnation) {
	for _, c := range s.conns.owned[in] {
		c.owner = nil
		_ = c.SetReadDeadline(time.Now().Add(firstRequest))
	}
	s.conns.left = append(s.conns.left, s.conns.owned[in]...)
	delete(s.conns.owned, in)
	s.boundFreshLocked()
}

// openLocked returns all connections.
func (s *Server) openLocked() []*conn {
	all := slices.Concat(s.conns.left, s.conns.fresh)
	for _, owned := range s.conns.owned {
		all = append(all, owned...)
	}
	return all
}

const (
	// requestEvery is the pace of the requests of an incarnation, and requestBurst the number
	// that it may make at once. A request costs the daemon more than a report costs the
	// supervisor, and a daemon serves many sandboxes.
	requestEvery = 10 * time.Millisecond
	requestBurst = 200
)

// take counts a request and returns how long it is held back.
func (p *pace) take(now time.Time) time.Duration {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(requestEvery)
	return max(0, p.due.Sub(now)-requestBurst*requestEvery)
}

// allow sets how long a connection of an incarnation may be silent; 0 means for ever. It
// changes nothing for other connections.
func (s *Server) allow(c *conn, silent time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.owner == nil:
		return nil
	case silent == 0:
		return c.SetReadDeadline(time.Time{})
	}
	return c.SetReadDeadline(time.Now().Add(silent))
}
