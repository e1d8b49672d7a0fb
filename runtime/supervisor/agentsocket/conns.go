package agentsocket

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
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

const (
	// maxLine bounds a request, with its line end.
	maxLine = 64 << 10
	// usualLine is enough for most requests. It is small because agbox-agent makes a
	// connection, with a buffer, for each.
	usualLine = 512
	// sendTimeout is how long an answer may stay unread.
	sendTimeout = 10 * time.Second
	// burstGap is the time after which a request belongs to no burst any more.
	burstGap = 20 * time.Millisecond
)

// accept serves the connections until the listener is closed.
func (s *Server) accept(l *net.UnixListener) {
	for {
		raw, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: a connection that ends frees one
			time.Sleep(100 * time.Millisecond)
			continue
		}
		c := &conn{UnixConn: raw}
		if !s.add(c) {
			_ = c.Close()
			continue
		}
		s.work.Go(func() {
			defer s.remove(c)
			// A fault in here must not end the supervisor, and all commands with it.
			defer func() { _ = recover() }()
			s.serve(c)
		})
	}
}

// serve answers the requests of a connection, one after the other.
func (s *Server) serve(c *conn) {
	if c.SetReadDeadline(time.Now().Add(firstRequest)) != nil {
		return
	}
	s.callerOf(c) // now, as later the process may have ended
	in := bufio.NewReaderSize(c, usualLine)
	for more := true; more; {
		if _, err := in.Peek(1); err != nil {
			return
		}
		over := make(chan bool, 1)
		s.work.Go(func() {
			defer close(over)
			defer func() { _ = recover() }() // as in accept
			over <- s.burst(c, in)
		})
		more = <-over
	}
}

// burst answers a request, and those that follow soon. It returns false if the connection
// must end. It runs in a goroutine of its own: to decode and encode JSON takes up to 16 KB of
// stack, which a connection that waits for its next request would keep. A goroutine for each
// request would double its latency.
func (s *Server) burst(c *conn, in *bufio.Reader) (more bool) {
	for {
		line, err := readLine(in)
		if errors.Is(err, errLong) {
			_ = c.answer(nil, refused(codeLong), orders{})
		}
		if err != nil || !s.respond(c, line, in) {
			return false
		}
		if !s.soon(c, in) {
			return true
		}
	}
}

// soon reports whether a further request comes within the gap of a burst.
func (s *Server) soon(c *conn, in *bufio.Reader) bool {
	if in.Buffered() > 0 {
		return true
	}
	if s.allow(c, s.burstGap) != nil {
		return false
	}
	_, err := in.Peek(1)
	return s.allow(c, 0) == nil && err == nil
}

// respond answers a request. It returns false if it is the last one of its connection.
func (s *Server) respond(c *conn, line []byte, rest *bufio.Reader) (more bool) {
	id, reply, also := s.handle(c, line, rest, time.Now())
	if c.answer(id, reply, also) != nil {
		return false
	}
	no, ok := reply.(*refusal)
	return !c.torn && (!ok || no.Code != codeBusy && no.Code != codeLarge)
}

// errLong means that a line is longer than maxLine.
var errLong = errors.New("a line is too long")

// readLine reads a line. It uses no more memory than the line has bytes, and at most
// maxLine.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, errLong
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil // a last line without its end
		default:
			return line, err
		}
	}
}

// answer writes the answer to a request.
func (c *conn) answer(id json.RawMessage, reply any, also orders) error {
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return json.NewEncoder(c.UnixConn).Encode(envelope(id, reply, also))
}

const (
	// requestEvery is the pace of the requests of an incarnation, and requestBurst the number
	// that it may make at once. A request costs the daemon more than a report costs the
	// supervisor, and a daemon serves many sandboxes.
	requestEvery = 10 * time.Millisecond
	requestBurst = 200
)

// pace holds requests back that follow each other too fast. Server.mu guards it.
type pace struct {
	// due is when the requests so far would end at the pace.
	due time.Time
}

// take counts a request and returns how long it is held back.
func (p *pace) take(now time.Time) time.Duration {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(requestEvery)
	return max(0, p.due.Sub(now)-requestBurst*requestEvery)
}
