package process

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// Peer returns the id of the process that listens on the Unix socket behind conn.
func Peer(conn net.Conn) (pid int, err error) {
	pid, _, err = PeerUser(conn)
	return pid, err
}

// PeerUser is like Peer, and also returns the user id that the process had when it began
// to listen.
func PeerUser(conn net.Conn) (pid, uid int, err error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, 0, errors.New("not a Unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, 0, err
	}
	return int(cred.Pid), int(cred.Uid), nil
}
