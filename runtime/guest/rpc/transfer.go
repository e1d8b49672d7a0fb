package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Preamble is the first text on the connection of a transfer. Read as the header of
// a ttrpc frame, it would exceed the length limit, so the two cannot be confused.
// Transfers bypass calls: the library of ttrpc allocated each chunk five times and cut off readers that
// paused for a second.
const Preamble = "AGBXFILE"

// IsTransfer reports whether a connection that begins with p may be a transfer. p
// has at least one byte.
func IsTransfer(p []byte) bool { return p[0] == Preamble[0] }

// Pipe is the connection of a transfer. One goroutine may read while another one
// writes.
type Pipe struct {
	conn net.Conn
	in   *bufio.Reader
	// left is the number of unread bytes in the current chunk of Read.
	left uint32
	head [4]byte
	over bool
}

// NewPipe returns a pipe over conn. first yields the bytes that were read from conn
// before.
func NewPipe(conn net.Conn, first io.Reader) *Pipe {
	return &Pipe{conn: conn, in: bufio.NewReaderSize(io.MultiReader(first, conn), 32<<10)}
}

// Expect reads len(text) bytes and fails with ErrFrame if they are not text.
func (p *Pipe) Expect(text string) error {
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(p.in, buf); err != nil {
		return err
	}
	if string(buf) != text {
		return fmt.Errorf("%w: it does not begin as a transfer", ErrFrame)
	}
	return nil
}

// SendWord sends text, then the length of an encoded message and the message.
func (p *Pipe) SendWord(text string, raw []byte) error {
	if len(raw) > maxWord {
		return fmt.Errorf("%w: a message of %d bytes, the limit is %d", ErrFrame, len(raw), maxWord)
	}
	buf := binary.BigEndian.AppendUint32([]byte(text), uint32(len(raw)))
	_, err := p.conn.Write(append(buf, raw...))
	return err
}

// Word reads an encoded message with its length.
func (p *Pipe) Word() ([]byte, error) {
	n, err := p.length(maxWord)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, n)
	_, err = io.ReadFull(p.in, raw)
	return raw, err
}

func (p *Pipe) length(most uint32) (uint32, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.in, head[:]); err != nil {
		return 0, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > most {
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrFrame, n, most)
	}
	return n, nil
}

// Write sends data in chunks of at most MaxChunk bytes.
func (p *Pipe) Write(data []byte) (int, error) {
	for at := 0; at < len(data); {
		piece := data[at:min(len(data), at+MaxChunk)]
		binary.BigEndian.PutUint32(p.head[:], uint32(len(piece)))
		both := net.Buffers{p.head[:], piece}
		if _, err := both.WriteTo(p.conn); err != nil {
			return at, err
		}
		at += len(piece)
	}
	return len(data), nil
}

// End sends the empty chunk that ends the stream of chunks.
func (p *Pipe) End() error {
	_, err := p.conn.Write(make([]byte, 4))
	return err
}

// Next reads the next chunk into buf, which has room for MaxChunk bytes. It returns
// io.EOF once, for the empty chunk at the end. A broken connection is
// io.ErrUnexpectedEOF or another error.
func (p *Pipe) Next(buf []byte) ([]byte, error) {
	n, err := p.length(MaxChunk)
	if err != nil {
		return nil, broken(err)
	}
	if n == 0 {
		return nil, io.EOF
	}
	_, err = io.ReadFull(p.in, buf[:n])
	return buf[:n], broken(err)
}

// Read reads the chunks as one stream. It returns io.EOF at its end. A broken
// connection is io.ErrUnexpectedEOF or another error.
func (p *Pipe) Read(buf []byte) (int, error) {
	if p.over {
		return 0, io.EOF
	}
	if p.left == 0 {
		n, err := p.length(MaxChunk)
		if err != nil {
			return 0, broken(err)
		}
		if n == 0 {
			p.over = true
			return 0, io.EOF
		}
		p.left = n
	}
	n, err := p.in.Read(buf[:min(len(buf), int(p.left))])
	p.left -= uint32(n)
	return n, broken(err)
}

// Gone reports whether the peer has closed the connection, a Unix socket, even if
// some of its bytes have not been read yet.
func (p *Pipe) Gone() bool {
	sc, ok := p.conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} // neither end half-closes
		n, err := unix.Poll(set, 0)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(set, 0)
		}
		gone = n > 0
	})
	return gone || err != nil // an error means that this end closed it
}

// broken converts io.EOF to io.ErrUnexpectedEOF, because only an empty chunk ends the
// stream.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
