package server

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
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
