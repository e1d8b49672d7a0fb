package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime/guest/wire"
)

const (
	// maxConns bounds the concurrent connections; a daemon needs one.
	maxConns = 64
	// maxCalls bounds the concurrent calls of one connection; each has a goroutine.
	maxCalls = 2048
	// sendTimeout is how long a peer may leave a reply unread before its connection is
	// closed.
	sendTimeout = 10 * time.Second
)

// listener accepts and counts the connections of the daemon.
type listener struct {
	*net.UnixListener
	// transfer serves a connection that is a transfer of files. first yields the bytes
	// already read from it. It is set before Accept is called.
	transfer func(c *net.UnixConn, first io.Reader)

	// mu guards conns and finishing.
	mu    sync.Mutex
	conns map[*conn]struct{}
	// finishing is true once no further transfer may start.
	finishing bool
	// open counts conns for finish. transfers counts the running calls of transfer.
	open, transfers sync.WaitGroup
}

// listen makes the socket and replaces an older one at its path. It sets a umask around
// the bind, so that nobody else can connect before the socket gets its owner. It must be
// called before other goroutines make files, because the umask belongs to the process.
func listen(path string, owner logs.Owner) (*listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the old socket cannot be removed: %w", err)
	}
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("the supervisor cannot listen: %w", err)
	}
	if owner.UID != os.Geteuid() || owner.GID != os.Getegid() {
		err = os.Lchown(path, owner.UID, owner.GID)
	}
	if owner.GroupAccess && err == nil {
		err = os.Chmod(path, 0o660)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("the socket cannot be given to its owner: %w", err)
	}
	return &listener{UnixListener: l, conns: make(map[*conn]struct{})}, nil
}

// Accept returns the next connection from outside the container. A process inside needs no
// supervisor to run commands: through it, root could make any number of files on the host,
// and another user who has the uid of the daemon's user could become root.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if !trusted(c) {
			_ = c.Close()
			continue
		}
		if wrapped := l.add(c); wrapped != nil {
			return wrapped, nil
		}
		_ = c.Close()
	}
}

// trusted reports whether the peer may call the supervisor.
func trusted(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && trustedPeer(peer, os.Getpid(), os.Geteuid())
	})
	return err == nil && ok
}

// trustedPeer decides about the peer of a supervisor with these ids. A peer outside of
// the PID namespace has the pid 0 here. gVisor gives the supervisor's own credentials for
// every peer outside. A supervisor that is not PID 1 shares the namespace of its daemon,
// as in tests, and decides by the user.
func trustedPeer(peer *unix.Ucred, pid, euid int) bool {
	if peer.Pid == 0 || int(peer.Pid) == pid {
		return true
	}
	return pid != 1 && (peer.Uid == 0 || int(peer.Uid) == euid)
}

func (l *listener) add(c *net.UnixConn) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= maxConns {
		return nil
	}
	wrapped := &conn{UnixConn: c, listener: l}
	wrapped.in.Check = wrapped.request
	wrapped.out.Check = wrapped.reply
	l.conns[wrapped] = struct{}{}
	l.open.Add(1)
	return wrapped
}

func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.conns[c]; ok {
		delete(l.conns, c)
		l.open.Done()
	}
}

// serveTransfer serves a connection that is a transfer, unless the listener is finishing.
func (l *listener) serveTransfer(c *net.UnixConn, first io.Reader) {
	l.mu.Lock()
	if l.finishing {
		l.mu.Unlock()
		return
	}
	l.transfers.Add(1)
	l.mu.Unlock()
	defer l.transfers.Done()
	l.transfer(c, first)
}

// finishTransfers refuses new transfers and waits, at most for limit, until the running
// ones have ended and removed incomplete files. The limit is needed because a file system
// may hang. The caller has cancelled the transfers.
func (l *listener) finishTransfers(limit time.Duration) {
	l.mu.Lock()
	l.finishing = true
	l.mu.Unlock()
	done := make(chan struct{})
	go func() { l.transfers.Wait(); close(done) }()
	waitFor(done, limit)
}

// finish closes each connection once its calls are answered, and all of them after limit.
func (l *listener) finish(limit time.Duration) {
	_ = l.Close()
	for _, c := range l.all() {
		c.closeWhenIdle()
	}
	done := make(chan struct{})
	go func() { l.open.Wait(); close(done) }()
	if !waitFor(done, limit) {
		for _, c := range l.all() {
			_ = c.Close()
		}
		<-done
	}
}

func (l *listener) all() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}

// conn is a connection that is closed if its peer breaks the protocol, makes too many
// concurrent calls, or does not read.
type conn struct {
	*net.UnixConn
	listener *listener
	in, out  wire.Scanner
	// begun is set by the first read. Only the reading goroutine uses it.
	begun bool

	// mu guards the fields below.
	mu sync.Mutex
	// calls counts the requests whose last reply is still missing.
	calls int
	// closing means that the connection is closed once calls is 0.
	closing bool
}

// request counts a new request.
func (c *conn) request(h wire.Header) error {
	if err := wire.CheckRequest(h); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; c.calls > maxCalls {
		return fmt.Errorf("%w: more than %d calls at once", wire.ErrFrame, maxCalls)
	}
	return nil
}

// reply counts a finished request.
func (c *conn) reply(h wire.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Last() {
		c.calls--
	}
	return nil
}

// Read passes on only frames that a client may send. Every error ends the connection for
// ttrpc: after any other error, ttrpc would keep goroutines and buffers until the server
// shuts down.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.UnixConn.Read(p)
	if !c.begun && n > 0 {
		c.begun = true
		if wire.IsTransfer(p) && c.listener.transfer != nil {
			// ttrpc never sees this connection.
			c.listener.serveTransfer(c.UnixConn, bytes.NewReader(p[:n]))
			_ = c.Close()
			return 0, io.EOF
		}
	}
	if bad := c.in.Scan(p[:n]); bad != nil {
		_ = c.Close() // running calls may take long to end
		return 0, io.EOF
	}
	if err != nil {
		return n, io.EOF
	}
	return n, nil
}

// Write fails if the peer has not read for too long.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return 0, err
	}
	n, err := c.UnixConn.Write(p)
	_ = c.out.Scan(p[:n]) // cannot fail for the replies that it counts
	if c.idle() {
		_ = c.Close()
	}
	return n, err
}

func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing && c.calls == 0
}

func (c *conn) closeWhenIdle() {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	if c.idle() {
		_ = c.Close()
	}
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.UnixConn.Close()
	c.listener.remove(c)
	return err
}
