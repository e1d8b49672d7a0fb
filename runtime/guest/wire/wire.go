// Package wire has what both ends of the supervisor link share besides the .proto and
// the calls: the protocol version, the limits, the checks of frames, and the framing of
// transfers.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Protocol is this build's version of guest/v1. Fields are only ever added, so every
// version from 1 on is compatible.
const Protocol = 3

// LimitsSince is the first version whose supervisors enforce the limits of a
// StartRequest: timeouts, and the bytes of output that are kept.
const LimitsSince = 2

// AgentsSince is the first version whose supervisors have the service Agents.
const AgentsSince = 3

const (
	// MaxFrame is the maximum length of a request's frame in bytes. It is ttrpc's limit.
	MaxFrame = 4 << 20
	// MaxReply is the maximum length of a reply's frame in bytes. An ExecRecord, whose
	// longest field is the failure message, is much smaller.
	MaxReply = 64 << 10
	// MaxChunk is the maximum length of a chunk of a transfer in bytes.
	MaxChunk = 256 << 10
	// MaxWord is the maximum length of the other messages of a transfer in bytes.
	MaxWord = 64 << 10
	// MaxFailureMessage is the maximum length of ExecRecord.failure_message in bytes.
	MaxFailureMessage = 4 << 10
	// MaxBootID is the maximum length of a boot id in bytes.
	MaxBootID = 64
	// MaxRecordedCommand is the maximum size of RecordedRequest.command in bytes, with
	// RecordedWord for each word.
	MaxRecordedCommand = 4 << 10
	// RecordedWord is the most that the encoding adds to a word of a recorded command.
	RecordedWord = 4
	// MaxRecordedText is the maximum length of the other texts of a RecordedRequest.
	MaxRecordedText = 1 << 10
	// MaxRecordedRequest is more than the encoded size of any RecordedRequest in bytes.
	MaxRecordedRequest = 8 << 10
	// MaxWatched is the maximum number of execs in one WatchRequest.
	MaxWatched = 16 << 10
	// MaxStdin is the maximum length of the data in one WriteStdinRequest in bytes.
	MaxStdin = 1 << 20
	// SmallStdin is the maximum length of data for which a WriteStdin may block without
	// a bound. If the process does not read, a call with more data returns early, with
	// the count of the written bytes.
	SmallStdin = 4 << 10
	// MaxWriter is the maximum length of the name of a writer of standard input in bytes.
	MaxWriter = 64
)

// The kernel's limits in execve(2), with the usual stack limit of 8 MiB.
const (
	// MaxArgument is the maximum length of a single argument or variable in bytes,
	// including the terminating NUL.
	MaxArgument = 128 << 10
	// MaxArguments is the maximum size of command line and environment of a request
	// together, in bytes, including a pointer for each entry. It leaves 128 KiB of the
	// kernel's 2 MiB for the environment of the container.
	MaxArguments = 2<<20 - 128<<10
)

// CheckArguments returns an error if the kernel would refuse the command line and
// environment.
func CheckArguments(command, env []string) error {
	const pointer = 8
	total := 0
	for _, list := range [][]string{command, env} {
		for _, s := range list {
			if len(s)+1 > MaxArgument {
				return fmt.Errorf("one argument or variable has %d bytes, more than the %d that Linux accepts", len(s), MaxArgument-1)
			}
			total += len(s) + 1 + pointer
		}
	}
	if total > MaxArguments {
		return fmt.Errorf("command line and environment have %d bytes, more than the %d that Linux accepts", total, MaxArguments)
	}
	return nil
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

// CheckRequest refuses frames that a client of the supervisor may not send: all but
// requests.
func CheckRequest(h Header) error {
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

// CheckReply refuses frames that a supervisor may not send.
func CheckReply(h Header) error {
	switch {
	case h.Type != Response && h.Type != Data:
		return fmt.Errorf("%w: type %d from the supervisor", ErrFrame, h.Type)
	case h.Length > MaxReply:
		return fmt.Errorf("%w: a reply of %d bytes, the limit is %d", ErrFrame, h.Length, MaxReply)
	}
	return nil
}
