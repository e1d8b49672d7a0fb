package server

import (
	"errors"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socketBuffer is the size of the send and receive buffers of each connection
// in bytes. With the kernel's default of 208 KiB some versions of grpc-go can
// block both ends at several hundred concurrent calls (its issue 9330).
const socketBuffer = 4 << 20

// Listener accepts connections from this daemon's own user and from root. The
// socket's mode keeps others out already; this holds even if that was changed.
type Listener struct {
	*net.UnixListener
	Log *slog.Logger
}

// Accept returns the next connection of a user who may speak with the daemon.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := admit(conn); err != nil {
			l.Log.Warn("a connection was refused", "error", err)
			_ = conn.Close()
			continue
		}
		_ = conn.SetReadBuffer(socketBuffer)
		_ = conn.SetWriteBuffer(socketBuffer)
		return conn, nil
	}
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
