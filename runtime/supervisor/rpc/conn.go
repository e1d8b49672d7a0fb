// Package rpc answers calls in the protocol of ttrpc, as far as the daemon uses it: a call
// has one request, and either one reply or a stream of replies.
//
// The library of ttrpc, with the protobuf and gRPC packages that it needs, took about a
// megabyte of private memory in each sandbox. Besides, this package bounds what a caller
// may do, and ends a connection whose caller breaks the protocol.
package rpc

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

const (
	// maxCalls bounds the concurrent calls of one connection; each has a goroutine.
	maxCalls = 2048
	// sendTimeout is how long a caller may leave a reply unread before its connection is
	// closed.
	sendTimeout = 10 * time.Second
	// keptFrame is the longest frame in bytes whose buffer a connection keeps.
	keptFrame = 4 << 10
)

// Conn is one connection of a caller.
type Conn struct {
	raw     net.Conn
	onClose func()
	closing sync.Once
	// calls waits for the goroutines of the calls.
	calls sync.WaitGroup

	// sending guards frame, and keeps frames whole.
	// Held across I/O: frames must not mix, and sendTimeout bounds it.
	sending sync.Mutex
	frame   []byte

	// mu guards the fields below.
	mu sync.Mutex
	// open counts the calls whose last frame is still missing.
	open int
	// leaving means that the connection is closed once open is 0.
	leaving bool
}

// NewConn returns the connection over raw, which it owns. onClose is called once, when the
// connection is closed.
func NewConn(raw net.Conn, onClose func()) *Conn {
	return &Conn{raw: raw, onClose: onClose}
}

// Close closes the connection, which ends Serve.
func (c *Conn) Close() {
	c.closing.Do(func() {
		_ = c.raw.Close() // nobody waits for what was not sent
		c.onClose()
	})
}

// CloseWhenIdle closes the connection once all its calls are answered.
func (c *Conn) CloseWhenIdle() {
	c.mu.Lock()
	c.leaving = true
	idle := c.open == 0
	c.mu.Unlock()
	if idle {
		c.Close()
	}
}

// Serve answers the calls that come from in, which reads from the connection, until the
// connection ends or the caller breaks the protocol. Then it closes the connection, cancels
// the running calls and waits for them.
func (c *Conn) Serve(ctx context.Context, in *bufio.Reader, methods Methods) {
	ctx, cancel := context.WithCancel(ctx)
	defer c.calls.Wait()
	defer cancel()
	defer c.Close()
	head := make([]byte, wire.HeaderLen)
	for last := uint32(0); ; {
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		h := wire.ParseHeader(head)
		if wire.CheckRequest(h) != nil || h.StreamID <= last {
			return
		}
		last = h.StreamID
		raw := make([]byte, h.Length)
		if _, err := io.ReadFull(in, raw); err != nil {
			return
		}
		if !c.begin() {
			return
		}
		c.calls.Go(func() { c.answer(ctx, h.StreamID, raw, methods) })
	}
}

// begin counts a call. It returns false if there are too many.
func (c *Conn) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	return c.open <= maxCalls
}

// end counts a call that was answered.
func (c *Conn) end() {
	c.mu.Lock()
	c.open--
	over := c.leaving && c.open == 0
	c.mu.Unlock()
	if over {
		c.Close()
	}
}

// answer makes one call and sends its reply.
func (c *Conn) answer(ctx context.Context, stream uint32, raw []byte, methods Methods) {
	defer c.end()
	reply, err := c.call(ctx, stream, raw, methods)
	switch {
	case err != nil:
		_ = c.send(stream, wire.Response, 0, &guestv1.CallResponse{Status: statusOf(err)})
	case reply == nil:
		_ = c.send(stream, wire.Data, wire.RemoteClosed|wire.NoData, nil)
	default:
		payload, err := reply.MarshalVT()
		_ = c.send(stream, wire.Response, 0, &guestv1.CallResponse{Status: statusOf(err), Payload: payload})
	}
}

// call makes one call. It turns a panic into an error of that call. Otherwise all execs of
// the sandbox would die with the supervisor.
func (c *Conn) call(ctx context.Context, stream uint32, raw []byte, methods Methods) (reply Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			reply, err = nil, Errorf(Internal, "the supervisor failed in this call: %v", p)
		}
	}()
	var req guestv1.CallRequest
	if err := req.UnmarshalVT(raw); err != nil {
		return nil, Errorf(InvalidArgument, "the call cannot be read: %v", err)
	}
	method := methods[req.GetService()+"/"+req.GetMethod()]
	if method == nil {
		return nil, Errorf(Unimplemented, "there is no method %s of %s", req.GetMethod(), req.GetService())
	}
	if limit := req.GetTimeoutNano(); limit != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(limit))
		defer cancel()
	}
	return method(ctx, req.GetPayload(), func(m Message) error { return c.send(stream, wire.Data, 0, m) })
}

// send sends one frame. m may be nil. If it fails, the connection is useless and closed.
func (c *Conn) send(stream uint32, kind wire.Type, flags uint8, m Message) error {
	length := 0
	if m != nil {
		length = m.SizeVT()
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	frame := c.buffer(wire.HeaderLen + length)
	wire.PutHeader(frame, wire.Header{Length: uint32(length), StreamID: stream, Type: kind, Flags: flags})
	if m != nil {
		if _, err := m.MarshalToSizedBufferVT(frame[wire.HeaderLen:]); err != nil {
			return err
		}
	}
	err := c.raw.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err == nil {
		_, err = c.raw.Write(frame)
	}
	if err != nil {
		c.Close()
	}
	return err
}

// buffer returns room for a frame. The caller holds sending.
func (c *Conn) buffer(size int) []byte {
	if size > keptFrame {
		return make([]byte, size)
	}
	if cap(c.frame) < size {
		c.frame = make([]byte, size)
	}
	return c.frame[:size]
}
