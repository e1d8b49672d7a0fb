// Package rpc has what both ends of the supervisor link share besides the .proto: the protocol
// version, the limits, the framing of transfers, and calls in the protocol of ttrpc, as far as the
// link needs it. A call has one request, and either one reply or a stream of replies.
//
// The library of ttrpc, with the protobuf and gRPC packages that it needs, took about a
// megabyte of private memory in each sandbox. Besides, this package bounds what a peer may
// do, and ends a connection whose peer breaks the protocol.
package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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
	last := uint32(0)
	check := func(h Header) error {
		if h.StreamID <= last {
			return fmt.Errorf("%w: stream %d after %d", ErrFrame, h.StreamID, last)
		}
		last = h.StreamID
		return checkRequest(h)
	}
	for {
		h, raw, err := readFrame(in, check)
		if err != nil || !c.begin() {
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
		_ = c.send(stream, Response, 0, &guestv1.CallResponse{Status: statusOf(err)})
	case reply == nil:
		_ = c.send(stream, Data, RemoteClosed|NoData, nil)
	default:
		payload, err := reply.MarshalVT()
		_ = c.send(stream, Response, 0, &guestv1.CallResponse{Status: statusOf(err), Payload: payload})
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
	return method(ctx, req.GetPayload(), func(m Message) error { return c.send(stream, Data, 0, m) })
}

// send sends one frame. m may be nil. If it fails, the connection is useless and closed.
func (c *Conn) send(stream uint32, kind Type, flags uint8, m Message) error {
	length := 0
	if m != nil {
		length = m.SizeVT()
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	frame := c.buffer(HeaderLen + length)
	if err := putFrame(frame, Header{StreamID: stream, Type: kind, Flags: flags}, m); err != nil {
		return err
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

// Methods are the calls that a server answers, by "service/method".
type Methods map[string]Method

// Method answers one call. A unary one returns its reply. A streaming one passes its
// replies to send, whose error ends it, and returns nil.
type Method func(ctx context.Context, request []byte, send func(Message) error) (Message, error)

// Unary makes a Method of a function with one reply.
func Unary[T any, Req Pointer[T], Reply Message](fn func(context.Context, Req) (Reply, error)) Method {
	return func(ctx context.Context, raw []byte, _ func(Message) error) (Message, error) {
		req, err := decode[T, Req](raw)
		if err != nil {
			return nil, err
		}
		return fn(ctx, req)
	}
}

// Stream makes a Method of a function with any number of replies.
func Stream[T any, Req Pointer[T], Reply Message](fn func(ctx context.Context, req Req, send func(Reply) error) error) Method {
	return func(ctx context.Context, raw []byte, send func(Message) error) (Message, error) {
		req, err := decode[T, Req](raw)
		if err != nil {
			return nil, err
		}
		return nil, fn(ctx, req, func(reply Reply) error { return send(reply) })
	}
}

func decode[T any, Req Pointer[T]](raw []byte) (Req, error) {
	req := Req(new(T))
	if err := req.UnmarshalVT(raw); err != nil {
		return nil, Errorf(InvalidArgument, "the request cannot be read: %v", err)
	}
	return req, nil
}

// Code says why a call failed. The numbers are those of gRPC, which ttrpc sends too.
type Code int32

// The codes that the supervisor uses, and those that the daemon tells apart.
const (
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
)

// Error is the error of a call with its code. Methods return it; the caller gets both
// fields.
type Error struct {
	Code    Code
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Errorf returns an Error.
func Errorf(code Code, format string, args ...any) error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// statusOf returns what the caller learns of an error; nil if there is none.
func statusOf(err error) *guestv1.CallStatus {
	if err == nil {
		return nil
	}
	code := Unknown
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok:
		return &guestv1.CallStatus{Code: int32(e.Code), Message: valid(e.Message)}
	case errors.Is(err, context.Canceled):
		code = Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = DeadlineExceeded
	}
	return &guestv1.CallStatus{Code: int32(code), Message: valid(err.Error())}
}

// valid replaces what is no UTF-8, which the caller could not decode.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
