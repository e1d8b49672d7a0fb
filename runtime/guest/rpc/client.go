package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// pieceTimeout is how long the server may take to read one piece of a request before the
	// connection is closed. Writing a request is not bounded by the context of its call.
	pieceTimeout = 5 * time.Second
	// piece is the size of such a piece in bytes. With a timeout per piece, a slow server on
	// a busy machine need not read a whole request within pieceTimeout.
	piece = 64 << 10
	// streamBuffer is the number of replies that wait for a slow reader of a stream.
	streamBuffer = 64
	// readerTimeout is how long all replies wait for the reader of a stream whose buffer is
	// full, before that stream fails.
	readerTimeout = time.Second
)

// The errors of a Client, besides those of the context, *Error for a call that the server
// refused, and ErrFrame for a server that broke the protocol.
var (
	// ErrClosed means that the connection was lost or closed.
	ErrClosed = errors.New("the connection is closed")
	// ErrSlowReader means that a stream failed because nobody read its replies.
	ErrSlowReader = errors.New("the replies of a stream were not read in time")
)

// Client calls the methods of a server that it does not trust: it bounds the length of
// replies, and ends the connection at a frame that answers no call. Its methods are safe for
// concurrent use.
type Client struct {
	raw     net.Conn
	closing sync.Once
	closed  chan struct{}
	done    chan struct{}

	// sending guards next, and keeps frames whole and in the order of their streams.
	// Held across I/O: frames must not mix, and pieceTimeout bounds it.
	sending sync.Mutex
	// next is the stream of the next call.
	next uint32

	// mu guards the fields below.
	mu sync.Mutex
	// open has the calls whose last reply is still missing; nil if nobody waits for it.
	open map[uint32]*Replies
	// err says why the connection has ended; nil while it serves.
	err error
}

// NewClient returns a client over raw, which it owns. Close ends its goroutine.
func NewClient(raw net.Conn) *Client {
	c := &Client{raw: raw, closed: make(chan struct{}), done: make(chan struct{}), next: 1, open: make(map[uint32]*Replies)}
	go func() { // ends when the connection is closed; closes done
		defer close(c.done)
		err := c.receive()
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		c.shut()
	}()
	return c
}

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close closes the connection, which fails all calls, and waits for its end.
func (c *Client) Close() {
	c.shut()
	<-c.done
}

func (c *Client) shut() {
	c.closing.Do(func() {
		close(c.closed)
		_ = c.raw.Close() // nobody waits for what was not sent
	})
}

// Breach returns how the server broke the protocol, a ErrFrame; nil if it did not.
func (c *Client) Breach() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, ErrFrame) {
		return c.err
	}
	return nil
}

// receive passes replies on until the connection ends, and returns why.
func (c *Client) receive() error {
	in := bufio.NewReader(c.raw)
	for {
		h, raw, err := readFrame(in, c.expected)
		if err != nil {
			return lost(err)
		}
		if s := c.take(h); s != nil {
			c.deliver(s, frame{h, raw})
		}
	}
}

// expected refuses frames that answer no call.
func (c *Client) expected(h Header) error {
	if err := checkReply(h); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.open[h.StreamID]; !ok {
		return fmt.Errorf("%w: a reply to nothing on stream %d", ErrFrame, h.StreamID)
	}
	return nil
}

// take returns the call that a frame belongs to; nil if nobody waits for it.
func (c *Client) take(h Header) *Replies {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.open[h.StreamID]
	if h.Last() {
		delete(c.open, h.StreamID)
	}
	return s
}

// deliver passes a frame to its reader. A reader that is too slow loses its stream.
func (c *Client) deliver(s *Replies, f frame) {
	select {
	case s.frames <- f:
		return
	default:
	}
	timeout := time.NewTimer(readerTimeout)
	defer timeout.Stop()
	select {
	case s.frames <- f:
	case <-s.ctx.Done():
	case <-c.closed:
	case <-timeout.C:
		c.abandon(s)
		close(s.slow)
	}
}

// abandon discards the replies of a call that are still to come.
func (c *Client) abandon(s *Replies) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, open := c.open[s.id]; open {
		c.open[s.id] = nil
	}
}

// begin sends a request. buffer is the number of replies that wait for their reader.
func (c *Client) begin(ctx context.Context, method string, flags uint8, limit time.Duration, req Message, buffer int) (*Replies, error) {
	payload, err := req.MarshalVT()
	if err != nil {
		return nil, err
	}
	service, name, _ := strings.Cut(method, "/")
	call := &guestv1.CallRequest{Service: service, Method: name, Payload: payload, TimeoutNano: int64(limit)}
	length := call.SizeVT()
	if length > MaxFrame {
		return nil, Errorf(ResourceExhausted, "message length %d exceed maximum message size of %d", length, MaxFrame)
	}
	s := &Replies{c: c, ctx: ctx, frames: make(chan frame, buffer), slow: make(chan struct{})}
	c.sending.Lock()
	defer c.sending.Unlock()
	s.id = c.next
	c.next += 2
	buf := make([]byte, HeaderLen+length)
	if err := putFrame(buf, Header{StreamID: s.id, Type: Request, Flags: flags}, call); err != nil {
		return nil, err
	}
	if err := c.await(s); err != nil {
		return nil, err
	}
	return s, lost(c.write(buf))
}

// await expects replies to a call that is going to be sent.
func (c *Client) await(s *Replies) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.open[s.id] = s
	return nil
}

// write sends a frame. If that fails, the connection is useless and closed.
func (c *Client) write(buf []byte) error {
	for len(buf) > 0 {
		err := c.raw.SetWriteDeadline(time.Now().Add(pieceTimeout))
		n := 0
		if err == nil {
			n, err = c.raw.Write(buf[:min(len(buf), piece)])
		}
		if err != nil {
			c.shut()
			return err
		}
		buf = buf[n:]
	}
	return nil
}

// lost converts the errors of a connection that has ended to ErrClosed.
func lost(err error) error {
	for _, end := range []error{io.EOF, io.ErrClosedPipe, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, end) {
			return ErrClosed
		}
	}
	return err
}

type frame struct {
	Header
	payload []byte
}

// Replies are those to a call, of which there may be any number. The context of the call
// bounds them. Only its connection can tell the server that nobody reads them any more.
type Replies struct {
	c      *Client
	ctx    context.Context
	id     uint32
	frames chan frame
	// slow is closed if the reader was too slow.
	slow chan struct{}
	over bool
}

// next returns the next frame. Those that came before a failure count.
func (s *Replies) next() (frame, error) {
	var err error
	select {
	case f := <-s.frames:
		return f, nil
	case <-s.ctx.Done():
		return frame{}, s.ctx.Err()
	case <-s.slow:
		err = ErrSlowReader
	case <-s.c.done:
		s.c.mu.Lock()
		err = s.c.err
		s.c.mu.Unlock()
	}
	select {
	case f := <-s.frames:
		return f, nil
	default:
		return frame{}, err
	}
}

// Recv receives the next reply. It returns io.EOF at the end of the stream, but the server
// may also end it with an empty reply.
func (s *Replies) Recv(reply Decodable) error {
	if s.over {
		return io.EOF
	}
	f, err := s.next()
	if err != nil {
		return err
	}
	s.over = f.Last()
	switch {
	case f.Type == Response:
		return f.result(reply)
	case s.over && f.Flags&NoData != 0:
		return io.EOF
	}
	return reply.UnmarshalVT(f.payload)
}

// result decodes the last frame of a call.
func (f frame) result(reply Decodable) error {
	var resp guestv1.CallResponse
	if err := resp.UnmarshalVT(f.payload); err != nil {
		return err
	}
	if err := reply.UnmarshalVT(resp.GetPayload()); err != nil {
		return err
	}
	if st := resp.GetStatus(); st.GetCode() != 0 {
		return &Error{Code(st.GetCode()), st.GetMessage()}
	}
	return nil
}

// Stream begins a call with any number of replies, to a method "service/method". The server
// does not learn the deadline of ctx.
func (c *Client) Stream(ctx context.Context, method string, req Message) (*Replies, error) {
	return c.begin(ctx, method, RemoteClosed, 0, req, streamBuffer)
}

// Call makes a call with one reply, to a method "service/method". The server learns the
// deadline of ctx, but not that ctx is cancelled: it may complete a call that has failed here.
func Call[T any, R Pointer[T]](ctx context.Context, c *Client, method string, req Message) (R, error) {
	var limit time.Duration
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // else further replies, which nobody reads, hold up those to other calls
	s, err := c.begin(ctx, method, 0, limit, req, 1)
	if err != nil {
		return nil, err
	}
	defer c.abandon(s)
	f, err := s.next()
	if err != nil {
		return nil, err
	}
	if f.Type != Response {
		return nil, errors.New("a call with one reply was answered by a stream") // the connection is in order
	}
	reply := R(new(T))
	return reply, f.result(reply)
}
