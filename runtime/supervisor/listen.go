package supervisor

import (
	"bufio"
	"bytes"
	"context"
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
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// maxConns bounds the concurrent connections; a daemon needs one.
const maxConns = 64

// listener accepts and counts the connections of the daemon.
type listener struct {
	*net.UnixListener
	// transfer serves a connection that is a transfer of files. first yields the bytes
	// already read from it. It is set before serve is called.
	transfer func(c *net.UnixConn, first io.Reader)

	// mu guards conns and finishing.
	mu    sync.Mutex
	conns map[*rpc.Conn]struct{}
	// finishing is true once no further transfer may start.
	finishing bool
	// open counts conns for finish. transfers counts the running calls of transfer, and
	// serving the goroutines that serve connections.
	open, transfers, serving sync.WaitGroup
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
	return &listener{UnixListener: l, conns: make(map[*rpc.Conn]struct{})}, nil
}

// acceptPause is how long no connection is accepted after accepting has failed, for
// example because there are too many open files.
const acceptPause = 100 * time.Millisecond

// serve answers the calls of connections from outside the container. It returns when the
// listener is closed. A process inside needs no supervisor to run commands: through it,
// root could make any number of files on the host, and another user who has the uid of the
// daemon's user could become root.
func (l *listener) serve(ctx context.Context, methods rpc.Methods) error {
	for {
		c, err := l.AcceptUnix()
		if problem, ok := errors.AsType[net.Error](err); ok && !errors.Is(err, net.ErrClosed) && problem.Temporary() { //nolint:staticcheck // too many open files is temporary
			waitFor(ctx.Done(), acceptPause)
			continue
		}
		if err != nil {
			return err
		}
		conn := l.take(c)
		if conn == nil {
			_ = c.Close()
			continue
		}
		l.serving.Go(func() { l.answer(ctx, c, conn, methods) })
	}
}

// firstRead is how many bytes are read at once to find frames. The content of a longer
// frame is read directly.
const firstRead = 512

// answer serves one connection until its end.
func (l *listener) answer(ctx context.Context, raw *net.UnixConn, c *rpc.Conn, methods rpc.Methods) {
	defer c.Close()
	in := bufio.NewReaderSize(raw, firstRead)
	first, err := in.Peek(1)
	switch {
	case err != nil:
	case l.transfer != nil && rpc.IsTransfer(first):
		first, _ = in.Peek(in.Buffered())
		l.serveTransfer(raw, bytes.NewReader(first))
	default:
		c.Serve(ctx, in, methods)
	}
}

// wait waits, after serve, at most for limit until no connection is served. The limit is needed
// because a file system may hang under a call.
func (l *listener) wait(limit time.Duration) {
	done := make(chan struct{})
	go func() { l.serving.Wait(); close(done) }()
	waitFor(done, limit)
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

// take registers a connection that may be served. It returns nil for another one.
func (l *listener) take(raw *net.UnixConn) *rpc.Conn {
	if !trusted(raw) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= maxConns {
		return nil
	}
	var c *rpc.Conn
	c = rpc.NewConn(raw, func() { l.remove(c) })
	l.conns[c] = struct{}{}
	l.open.Add(1)
	return c
}

func (l *listener) remove(c *rpc.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	l.open.Done()
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
		c.CloseWhenIdle()
	}
	done := make(chan struct{})
	go func() { l.open.Wait(); close(done) }()
	if !waitFor(done, limit) {
		for _, c := range l.all() {
			c.Close()
		}
		<-done
	}
}

func (l *listener) all() []*rpc.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.conns))
}
