package rpc

import (
	"bufio"
	"io"

	"github.com/agbox/agbox/runtime/guest/wire"
)

// Message is an encodable message, as protoc-gen-go-lite generates it.
type Message interface {
	SizeVT() int
	MarshalToSizedBufferVT(buf []byte) (int, error)
	MarshalVT() ([]byte, error)
}

// Decodable is a message that can be decoded.
type Decodable interface{ UnmarshalVT(raw []byte) error }

// Pointer is a pointer to such a message.
type Pointer[T any] interface {
	*T
	Decodable
}

// readFrame reads a frame, if check accepts its header.
func readFrame(in *bufio.Reader, check func(wire.Header) error) (wire.Header, []byte, error) {
	head, err := in.Peek(wire.HeaderLen)
	if err != nil {
		return wire.Header{}, nil, err
	}
	h := wire.ParseHeader(head)
	if err := check(h); err != nil {
		return wire.Header{}, nil, err
	}
	_, _ = in.Discard(wire.HeaderLen) // Peek has read it
	raw := make([]byte, h.Length)
	_, err = io.ReadFull(in, raw)
	return h, raw, err
}

// putFrame encodes a frame, which has room for the header and for m, which may be nil.
func putFrame(frame []byte, h wire.Header, m Message) error {
	h.Length = uint32(len(frame) - wire.HeaderLen)
	wire.PutHeader(frame, h)
	if m == nil {
		return nil
	}
	_, err := m.MarshalToSizedBufferVT(frame[wire.HeaderLen:])
	return err
}
