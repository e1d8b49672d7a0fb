// Package wire is what both ends of the supervisor link agree on beyond the
// .proto: the protocol version, the limits, and which frames may arrive at all.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Protocol is the version of guest/v1 that this build speaks. Fields are only
// ever added, so every version from 1 on can be talked to.
const Protocol = 2

// LimitsSince is the version from which on a supervisor honours the limits of a
// StartRequest: timeouts, and the bytes of output that are kept.
const LimitsSince = 2

const (
	// MaxFrame is the longest frame of a request in bytes; it is ttrpc's own.
	MaxFrame = 4 << 20
	// MaxReply is the longest frame of a reply in bytes: one ExecRecord, whose
	// longest field is the failure message, fits many times.
	MaxReply = 64 << 10
	// MaxChunk is the most bytes of a file in one message of a transfer.
	MaxChunk = 256 << 10
	// MaxWord is the longest message of a transfer that is no chunk, in bytes.
	MaxWord = 64 << 10
	// MaxFailureMessage is the longest ExecRecord.failure_message in bytes.
	MaxFailureMessage = 4 << 10
	// MaxBootID is the longest boot id in bytes.
	MaxBootID = 64
	// MaxWatched is the largest number of execs in one WatchRequest.
	MaxWatched = 16 << 10
	// MaxStdin is the most data of one WriteStdinRequest in bytes.
	MaxStdin = 1 << 20
	// SmallStdin is the most data with which a WriteStdin may wait for ever. Calls
	// with more end early, with a count that says so, when nothing is read.
	SmallStdin = 4 << 10
	// MaxWriter is the longest name of a writer of standard input in bytes.
	MaxWriter = 64
)

// What the kernel accepts in execve(2) with its usual stack limit of 8 MiB.
const (
	// MaxArgument is the longest single argument or variable in bytes, the
	// closing NUL included.
	MaxArgument = 128 << 10
	// MaxArguments is the most that command line and environment of a request
	// may take together in bytes, a pointer for each included. It leaves 128 KiB
	// of the kernel's 2 MiB to the environment of the container.
	MaxArguments = 2<<20 - 128<<10
)

// CheckArguments refuses a command line and environment that the kernel would
// not accept.
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

// The kinds of frames, from ttrpc's PROTOCOL.md.
const (
	Request  Type = 1
	Response Type = 2
	Data     Type = 3
)

const (
	headerLen = 10
	// flagRemoteClosed says that the sender will send no more on the stream.
	flagRemoteClosed = 1
)

// ErrFrame is the class of every refused frame.
var ErrFrame = errors.New("a frame that the protocol does not allow")

// Header is the head of one ttrpc frame.
type Header struct {
	// Length of the frame in bytes, without the header.
	Length   uint32
	StreamID uint32
	Type     Type
	Flags    uint8
}

// Last tells whether the frame ends its stream when it comes from the server.
func (h Header) Last() bool {
	return h.Type == Response || h.Flags&flagRemoteClosed != 0
}

// Scanner finds the frame headers in a byte stream that arrives in any pieces.
// It keeps no payload.
type Scanner struct {
	// Check is called with each header; its error ends the scan.
	Check func(Header) error

	head [headerLen]byte
	have int
	left uint32
}

// Scan takes the next piece of the stream.
func (s *Scanner) Scan(p []byte) error {
	for len(p) > 0 {
		if s.left > 0 {
			n := min(uint64(s.left), uint64(len(p)))
			s.left -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(s.head[s.have:], p)
		s.have += n
		p = p[n:]
		if s.have < headerLen {
			return nil
		}
		s.have = 0
		h := Header{
			Length:   binary.BigEndian.Uint32(s.head[:4]),
			StreamID: binary.BigEndian.Uint32(s.head[4:8]),
			Type:     Type(s.head[8]),
			Flags:    s.head[9],
		}
		if err := s.Check(h); err != nil {
			return err
		}
		s.left = h.Length
	}
	return nil
}

// CheckRequest allows what a client of the supervisor may send: requests only.
// ttrpc up to 1.2.10 itself dies of a data frame for a call that has no stream.
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
