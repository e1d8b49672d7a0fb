package rpc

import (
	"context"
)

// Message is an encodable message, as protoc-gen-go-lite generates it.
type Message interface {
	SizeVT() int
	MarshalToSizedBufferVT(buf []byte) (int, error)
	MarshalVT() ([]byte, error)
}

// Methods are the calls that a server answers, by "service/method".
type Methods map[string]Method

// Method answers one call. A unary one returns its reply. A streaming one passes its
// replies to send, whose error ends it, and returns nil.
type Method func(ctx context.Context, request []byte, send func(Message) error) (Message, error)

// request is a pointer to a message that can be decoded.
type request[T any] interface {
	*T
	UnmarshalVT(raw []byte) error
}

// Unary makes a Method of a function with one reply.
func Unary[T any, Req request[T], Reply Message](fn func(context.Context, Req) (Reply, error)) Method {
	return func(ctx context.Context, raw []byte, _ func(Message) error) (Message, error) {
		req, err := decode[T, Req](raw)
		if err != nil {
			return nil, err
		}
		return fn(ctx, req)
	}
}

// Stream makes a Method of a function with any number of replies.
func Stream[T any, Req request[T], Reply Message](fn func(ctx context.Context, req Req, send func(Reply) error) error) Method {
	return func(ctx context.Context, raw []byte, send func(Message) error) (Message, error) {
		req, err := decode[T, Req](raw)
		if err != nil {
			return nil, err
		}
		return nil, fn(ctx, req, func(reply Reply) error { return send(reply) })
	}
}

func decode[T any, Req request[T]](raw []byte) (Req, error) {
	req := Req(new(T))
	if err := req.UnmarshalVT(raw); err != nil {
		return nil, Errorf(InvalidArgument, "the request cannot be read: %v", err)
	}
	return req, nil
}
