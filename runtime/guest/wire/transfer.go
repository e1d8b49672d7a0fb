package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Preamble begins the connection of a transfer. No ttrpc frame begins so: it would
// be longer than any that is accepted.
const Preamble = "AGBXFILE"

// IsTransfer tells by the first bytes of a connection, of which there is at least
// one, whether it may be a transfer.
func IsTransfer(p []byte) bool { return p[0] == Preamble[0] }

// Pipe is the connection of a transfer. One goroutine may read while another writes.
type Pipe struct {
	conn net.Conn
	in   *bufio.Reader
	// left is what is still to be read of the chunk that Read is in.
	left uint32
	head [4]byte
	over bool
}

// NewPipe makes a pipe of a connection; first is what was read of it already.
func NewPipe(conn net.Conn, first io.Reader) *Pipe {
	return &Pipe{conn: conn, in: bufio.NewReaderSize(io.MultiReader(first, conn), 32<<10)}
}

// Expect reads a text that has to come.
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

// SendWord sends a message, after a text.
func (p *Pipe) SendWord(text string, m proto.Message) error {
	raw, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if len(raw) > MaxWord {
		return fmt.Errorf("%w: a message of %d bytes, the limit is %d", ErrFrame, len(raw), MaxWord)
	}
	buf := binary.BigEndian.AppendUint32([]byte(text), uint32(len(raw)))
	_, err = p.conn.Write(append(buf, raw...))
	return err
}

// Word reads a message.
func (p *Pipe) Word(m proto.Message) error {
	n, err := p.length(MaxWord)
	if err != nil {
		return err
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(p.in, raw); err != nil {
		return err
	}
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("%w: %w", ErrFrame, err)
	}
	return nil
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

// Write sends bytes as chunks.
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

// End says that there are no more chunks.
func (p *Pipe) End() error {
	_, err := p.conn.Write(make([]byte, 4))
	return err
}

// Next reads the next chunk into buf, which has room for MaxChunk bytes. It
// returns io.EOF once, at the end; a connection that breaks is another error.
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

// Read reads chunks as one stream. It returns io.EOF at its end; a connection that
// breaks is another error.
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

// Gone tells whether the other end has closed the connection, a Unix socket, also
// while bytes of it can still be read.
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
		set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} // neither end closes a half
		n, err := unix.Poll(set, 0)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(set, 0)
		}
		gone = n > 0
	})
	return gone || err != nil // or it was closed at this end
}

// broken keeps an early end from being taken for the end.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
