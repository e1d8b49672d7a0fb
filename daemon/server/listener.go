package server

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/internal/process"
)

// socketBuffer is the size of the send and receive buffers of each connection in bytes.
// With the kernel's default of 208 KiB some versions of grpc-go can block both ends with
// several hundred concurrent calls (its issue 9330).
const socketBuffer = 4 << 20

// Listener accepts connections from the daemon's own user and from root. The socket's
// mode already excludes other users; this check works even if somebody has changed the
// mode.
type Listener struct {
	*net.UnixListener
	log *slog.Logger

	// pausing is closed to stop accepting, parked when that has happened, and closed when
	// the listener is closed.
	pausing, parked, closed chan struct{}
	park, closing           sync.Once
	// unserved counts accepted connections that were not used yet.
	unserved sync.WaitGroup

	mu   sync.Mutex // guards open
	open map[*peerConn]struct{}
}

// NewListener takes over a listener. It logs refused connections.
func NewListener(lis *net.UnixListener, log *slog.Logger) *Listener {
	return &Listener{
		UnixListener: lis, log: log,
		pausing: make(chan struct{}), parked: make(chan struct{}), closed: make(chan struct{}),
		open: make(map[*peerConn]struct{}),
	}
}

// pause stops accepting. Further connections wait in the socket's queue for the next
// listener. It returns when every accepted connection has greeted, or was closed because
// it is silent: connections that grpc gets while it stops are closed, and grpc announces
// its end to nobody before all have greeted. It must be called once, while Accept is
// running.
func (l *Listener) pause() {
	close(l.pausing)
	_ = l.SetDeadline(time.Unix(1, 0)) // fails only on a closed listener
	select {
	case <-l.parked:
		l.unserved.Wait()
		l.awaitGreetings()
	case <-l.closed:
	}
}

// Close stops listening.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	return l.UnixListener.Close()
}

// Accept returns the next connection of a permitted user. After pause it blocks until the
// listener is closed.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, l.acceptFailed(err)
		}
		pid, uid, err := admit(conn)
		if err != nil {
			l.log.Warn("a connection was refused", "error", err)
			_ = conn.Close()
			continue
		}
		_ = conn.SetReadBuffer(socketBuffer)
		_ = conn.SetWriteBuffer(socketBuffer)
		return l.newPeer(conn, pid, uid), nil
	}
}

func (l *Listener) acceptFailed(err error) error {
	select {
	case <-l.pausing:
		l.park.Do(func() { close(l.parked) })
		<-l.closed
		return net.ErrClosed
	default:
		return err
	}
}

// admit returns the process that has connected and its user, if that may.
func admit(conn *net.UnixConn) (pid, uid int, err error) {
	pid, uid, err = process.PeerUser(conn)
	if err != nil {
		return 0, 0, err
	}
	if uid != 0 && uid != os.Getuid() {
		return 0, 0, errors.New("the peer is another user")
	}
	return pid, uid, nil
}

// greetLooks is how many looks, lookEvery apart, a connection gets to send the first
// frame. Clients send it at once.
const greetLooks = 200

// peerConn is an accepted connection.
type peerConn struct {
	*net.UnixConn
	// pid is the process that has connected, or 0 if it has no id here.
	pid int
	// uid is its user.
	uid int
	// begun is called at the first use, ended at the first Close.
	begun, ended func()
	// frames is used by the one goroutine that reads.
	frames frames
	// greeted is set when the client has sent its first frame, acknowledged when it has
	// read that the server ends. It sends no further call then.
	greeted, acknowledged atomic.Bool
}

func (l *Listener) newPeer(conn *net.UnixConn, pid, uid int) *peerConn {
	l.unserved.Add(1)
	c := &peerConn{UnixConn: conn, pid: pid, uid: uid, begun: sync.OnceFunc(l.unserved.Done), frames: newFrames()}
	c.ended = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, c)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return c
}

// RemoteAddr returns the address with the user of the peer, for the contexts of its calls.
func (c *peerConn) RemoteAddr() net.Addr { return callerAddr{c.UnixConn.RemoteAddr(), c.uid} }

func (c *peerConn) Read(p []byte) (int, error) {
	c.begun()
	n, err := c.UnixConn.Read(p)
	if n > 0 {
		if c.frames.read(p[:n]) {
			c.acknowledged.Store(true)
		}
		if c.frames.greeted() {
			c.greeted.Store(true)
		}
	}
	return n, err
}

func (c *peerConn) Write(p []byte) (int, error) {
	c.begun()
	return c.UnixConn.Write(p)
}

func (c *peerConn) Close() error {
	c.begun()
	c.ended()
	return c.UnixConn.Close()
}

// peersThat returns the open connections for which is is true.
func (l *Listener) peersThat(is func(*peerConn) bool) []*peerConn {
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	return slices.DeleteFunc(open, func(c *peerConn) bool { return !is(c) })
}

func (l *Listener) silent() []*peerConn {
	return l.peersThat(func(c *peerConn) bool { return !c.greeted.Load() })
}

// closeSilent closes the connections over which nothing came yet: grpc would wait two
// minutes for their greeting before it ends. Their clients have not sent a call.
func (l *Listener) closeSilent() {
	if l == nil { // nothing is served
		return
	}
	for _, c := range l.silent() {
		l.log.Warn("a connection is closed, because its client has sent nothing", "pid", c.pid)
		_ = c.Close()
	}
}

// awaitGreetings waits for the first frame of every connection, and closes those without.
func (l *Listener) awaitGreetings() {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for range greetLooks {
		if len(l.silent()) == 0 {
			return
		}
		<-look.C
	}
	l.closeSilent()
}

// mayCall reports whether a peer may still send a call: it has not acknowledged the end of
// its connection, and its process is not stopped by a signal.
func (l *Listener) mayCall() bool {
	if l == nil {
		return false
	}
	expected := l.peersThat(func(c *peerConn) bool { return !c.acknowledged.Load() })
	return slices.ContainsFunc(expected, func(c *peerConn) bool { return !process.Stopped(c.pid) })
}

// Lengths, types and flags of HTTP/2 (RFC 9113, sections 3.4, 4.1 and 6.7), in bytes.
const (
	prefaceLength     = 24
	frameHeaderLength = 9
	pingLength        = 8
	pingFrame         = 6
	ackFlag           = 1
)

// goAwayPing is the data of the ping that grpc-go sends behind its first GOAWAY frame. A
// client that acknowledges it has read that frame, and sends no further call over the
// connection.
var goAwayPing = [pingLength]byte{1, 6, 1, 8, 0, 3, 3, 9}

// frames observes what an HTTP/2 client sends. grpc does not report the acknowledgement
// of its GOAWAY frame.
type frames struct {
	// skip is the number of bytes before the next header.
	skip int
	// head has the first bytes of a frame: its header, and the data of a ping.
	head [frameHeaderLength + pingLength]byte
	have int
	// headers counts the headers.
	headers int
}

func newFrames() frames { return frames{skip: prefaceLength} }

// greeted reports whether the client has sent the preface and its first frame.
func (f *frames) greeted() bool { return f.headers > 1 || f.headers == 1 && f.skip == 0 }

// read takes the next bytes and reports whether they end an acknowledgement of GOAWAY.
func (f *frames) read(p []byte) (acknowledged bool) {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			f.skip -= n
			p = p[n:]
			continue
		}
		want := frameHeaderLength
		if f.have >= frameHeaderLength {
			want = len(f.head)
		}
		n := copy(f.head[f.have:want], p)
		f.have += n
		p = p[n:]
		switch {
		case f.have < want:
		case want == frameHeaderLength:
			f.begin()
		default:
			acknowledged = acknowledged || f.head[4]&ackFlag != 0 && [pingLength]byte(f.head[frameHeaderLength:]) == goAwayPing
			f.have = 0
		}
	}
	return acknowledged
}

// begin handles a complete header. The data of a ping is read, that of other frames
// skipped.
func (f *frames) begin() {
	f.headers++
	length := int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	if f.head[3] == pingFrame && length == pingLength {
		return
	}
	f.skip, f.have = length, 0
}
