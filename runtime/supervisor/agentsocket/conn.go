package agentsocket

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"
)

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
