package agents

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
	in := bufio.NewReaderSize(c, usualLine)
	for {
		line, err := readLine(in)
		if errors.Is(err, errLong) {
			_ = c.answer(nil, refused(codeLong), orders{})
			return
		}
		if err != nil {
			return
		}
		id, reply, also := s.handle(c, line, in, time.Now())
		if c.answer(id, reply, also) != nil {
			return
		}
		if no, ok := reply.(*refusal); ok && (no.Code == codeBusy || no.Code == codeLarge) {
			return
		}
	}
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
	line, err := json.Marshal(envelope(id, reply, also))
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	_, err = c.Write(append(line, '\n'))
	return err
}
