package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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

// Type is the kind of a ttrpc frame.
type Type uint8

// The kinds of frames. Source: ttrpc's PROTOCOL.md.
const (
	Request  Type = 1
	Response Type = 2
	Data     Type = 3
)

// HeaderLen is the length of a frame's header in bytes.
const HeaderLen = 10

// The flags of data frames.
const (
	// RemoteClosed means that the sender sends nothing more on the stream.
	RemoteClosed = 1
	// NoData means that the frame has no message, as opposed to an empty one.
	NoData = 4
)

// ErrFrame is the class of the errors about invalid frames.
var ErrFrame = errors.New("a frame that the protocol does not allow")

// Header is the header of a ttrpc frame.
type Header struct {
	// Length of the frame in bytes, without the header.
	Length   uint32
	StreamID uint32
	Type     Type
	Flags    uint8
}

// Last reports whether the frame, sent by the server, ends its stream.
func (h Header) Last() bool {
	return h.Type == Response || h.Flags&RemoteClosed != 0
}

// ParseHeader decodes the first HeaderLen bytes of a frame.
func ParseHeader(frame []byte) Header {
	return Header{
		Length:   binary.BigEndian.Uint32(frame[:4]),
		StreamID: binary.BigEndian.Uint32(frame[4:8]),
		Type:     Type(frame[8]),
		Flags:    frame[9],
	}
}

// PutHeader encodes h into the first HeaderLen bytes of a frame.
func PutHeader(frame []byte, h Header) {
	binary.BigEndian.PutUint32(frame[:4], h.Length)
	binary.BigEndian.PutUint32(frame[4:8], h.StreamID)
	frame[8], frame[9] = byte(h.Type), h.Flags
}

// checkRequest refuses frames that a client of the supervisor may not send: all but
// requests.
func checkRequest(h Header) error {
	switch {
	case h.Type != Request:
		return fmt.Errorf("%w: type %d from a client", ErrFrame, h.Type)
	case h.Length > MaxFrame:
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrFrame, h.Length, MaxFrame)
	case h.StreamID%2 != 1:
		return fmt.Errorf("%w: even stream id %d", ErrFrame, h.StreamID)
	}
	return nil
}

// checkReply refuses frames that a supervisor may not send.
func checkReply(h Header) error {
	switch {
	case h.Type != Response && h.Type != Data:
		return fmt.Errorf("%w: type %d from the supervisor", ErrFrame, h.Type)
	case h.Length > MaxReply:
		return fmt.Errorf("%w: a reply of %d bytes, the limit is %d", ErrFrame, h.Length, MaxReply)
	}
	return nil
}

// readFrame reads a frame, if check accepts its header.
func readFrame(in *bufio.Reader, check func(Header) error) (Header, []byte, error) {
	head, err := in.Peek(HeaderLen)
	if err != nil {
		return Header{}, nil, err
	}
	h := ParseHeader(head)
	if err := check(h); err != nil {
		return Header{}, nil, err
	}
	_, _ = in.Discard(HeaderLen) // Peek has read it
	raw := make([]byte, h.Length)
	_, err = io.ReadFull(in, raw)
	return h, raw, err
}

// putFrame encodes a frame, which has room for the header and for m, which may be nil.
func putFrame(frame []byte, h Header, m Message) error {
	h.Length = uint32(len(frame) - HeaderLen)
	PutHeader(frame, h)
	if m == nil {
		return nil
	}
	_, err := m.MarshalToSizedBufferVT(frame[HeaderLen:])
	return err
}
