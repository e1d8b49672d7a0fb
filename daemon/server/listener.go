package server

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
}

// NewListener takes over a listener. It logs refused connections.
func NewListener(lis *net.UnixListener, log *slog.Logger) *Listener {
	return &Listener{
		UnixListener: lis, log: log,
		pausing: make(chan struct{}), parked: make(chan struct{}), closed: make(chan struct{}),
	}
}

// pause stops accepting. Further connections wait in the socket's queue for the next
// listener. It returns when every accepted connection is being served: connections that
// grpc gets while it stops are closed, and their callers would see a refusal. It must be
// called once, while Accept is running.
func (l *Listener) pause() {
	close(l.pausing)
	_ = l.SetDeadline(time.Unix(1, 0)) // fails only on a closed listener
	select {
	case <-l.parked:
		l.unserved.Wait()
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
		if err := admit(conn); err != nil {
			l.log.Warn("a connection was refused", "error", err)
			_ = conn.Close()
			continue
		}
		_ = conn.SetReadBuffer(socketBuffer)
		_ = conn.SetWriteBuffer(socketBuffer)
		l.unserved.Add(1)
		return &served{UnixConn: conn, begun: l.unserved.Done}, nil
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

// served is a connection that reports its first use.
type served struct {
	*net.UnixConn
	once  sync.Once
	begun func()
}

func (c *served) Read(p []byte) (int, error) {
	c.once.Do(c.begun)
	return c.UnixConn.Read(p)
}

func (c *served) Write(p []byte) (int, error) {
	c.once.Do(c.begun)
	return c.UnixConn.Write(p)
}

func (c *served) Close() error {
	c.once.Do(c.begun)
	return c.UnixConn.Close()
}

func admit(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Getuid() {
		return errors.New("the peer is another user")
	}
	return nil
}
