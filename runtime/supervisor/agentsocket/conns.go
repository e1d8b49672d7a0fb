package agentsocket

import (
	"net"
	"slices"
	"time"
)

const (
	// maxOwned bounds the connections of an incarnation, so that none takes those of others.
	maxOwned = 32
	// maxFresh bounds the connections that belong to no incarnation. One more ends the
	// oldest: a program sends its first request at once, so those that stay are idle.
	maxFresh = 64
	// firstRequest is how long a connection may belong to no incarnation.
	firstRequest = 10 * time.Second
)

// conn is a connection to the agent socket. It has at most maxLine bytes, a goroutine, and
// another one during a burst of requests.
type conn struct {
	*net.UnixConn
	// exec is that of the process that has made the connection. unknown means that nobody can
	// tell. Both are set before the first request.
	exec    string
	unknown bool
	// owner is the incarnation that it belongs to, or nil. Server.mu guards it.
	owner *incarnation
	// torn means that a part of a request did not come, so that what follows cannot be read.
	// The goroutine that answers uses it.
	torn bool
}

// conns has the open connections. Server.mu guards it.
type conns struct {
	// left has those of incarnations that have ended, and fresh those that never belonged to
	// one, oldest first.
	left, fresh []*conn
	owned       map[*incarnation][]*conn
}

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
