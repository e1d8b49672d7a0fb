package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/process"
)

// socketBuffer is the requested size of both socket buffers. Some versions of grpc-go can
// stall permanently with several hundred concurrent calls if one burst of frames does not
// fit into the socket's buffer (grpc-go issue 9330). The default of a Unix socket is 208
// KiB. The kernel limits it to net.core.wmem_max.
const socketBuffer = 4 << 20

// dialTimeout bounds one connection attempt. A variable for tests.
var dialTimeout = 5 * time.Second

// dialSocket connects to the daemon's socket, within dialTimeout. It fails with an *Error
// unless one of the users listens there.
func dialSocket(ctx context.Context, path string, by users) (net.Conn, error) {
	if err := checkFolder(path, by); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := checkListener(conn, path, by); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if u, ok := conn.(*net.UnixConn); ok {
		// Smaller buffers also work, but less well under load.
		_ = u.SetReadBuffer(socketBuffer)
		_ = u.SetWriteBuffer(socketBuffer)
	}
	return conn, nil
}

// isDown reports whether the error of a dial means that no daemon listens.
func isDown(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR)
}

// dialError explains a failed dial to people.
func dialError(ctx context.Context, path string, err error) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e := &Error{Code: codes.Unavailable, cause: ErrDaemonUnreachable}
	switch {
	case ctx.Err() != nil:
		return ended(ctx.Err())
	case isDown(err):
		e.cause = ErrDaemonNotRunning
		e.Message = fmt.Sprintf("agboxd is not running: no process listens on %s. Start it with `agbox daemon start`.", path)
	case errors.Is(err, fs.ErrPermission):
		e.Code = codes.PermissionDenied
		e.Message = fmt.Sprintf("This user may not open the socket %s. Run agbox as the user that runs agboxd.", path)
	default:
		e.Message = fmt.Sprintf("agboxd does not answer on %s (%v). Check `agbox daemon status`.", path, err)
	}
	return e
}

// othersMayWrite are the permission bits that let other users change a folder.
const othersMayWrite = 0o022

// checkFolder returns an error if the folder of a socket, or a symbolic link in its place,
// belongs to none of the users. Somebody else may have made it before the daemon did, for
// example in the temporary directory. A folder that is missing, or that this user cannot
// see, is left to the dial.
func checkFolder(socket string, by users) error {
	if strings.HasPrefix(socket, "@") { // a name without a file
		return nil
	}
	folder := filepath.Dir(socket)
	for _, stat := range []func(string, *unix.Stat_t) error{unix.Lstat, unix.Stat} {
		var st unix.Stat_t
		if stat(folder, &st) == nil && !by.include(st.Uid) {
			return untrusted("The folder %s, where the daemon's socket should be, belongs to another user (uid %d).", folder, st.Uid)
		}
	}
	return nil
}

// checkListener returns an error unless the process that listens behind conn belongs to
// one of the users, and nobody else can replace its socket.
func checkListener(conn net.Conn, socket string, by users) error {
	_, uid, err := process.PeerUser(conn)
	if err != nil {
		return untrusted("The user of the process that listens on %s cannot be determined (%v).", socket, err)
	}
	if !by.include(uint32(uid)) {
		return untrusted("The process that listens on %s belongs to another user (uid %d).", socket, uid)
	}
	if strings.HasPrefix(socket, "@") {
		return nil
	}
	folder := filepath.Dir(socket)
	var in, at unix.Stat_t
	if err := unix.Stat(folder, &in); err != nil {
		return err // a daemon that was ending has removed it
	}
	if in.Mode&othersMayWrite == 0 {
		return nil
	}
	if err := unix.Lstat(socket, &at); err != nil {
		return err
	}
	// In a folder with the sticky bit, such as /tmp, only its owner can replace a file.
	if in.Mode&unix.S_ISVTX == 0 || !by.include(at.Uid) {
		return untrusted("Other users may write to %s, the folder of the daemon's socket. Make it private with `chmod go-w %s`.", folder, folder)
	}
	return nil
}

// users are the ids of the users whose daemon this process uses.
type users []uint32

// ownUsers are root and the user of this process.
func ownUsers() users { return users{0, uint32(os.Getuid())} }

func (u users) include(uid uint32) bool { return slices.Contains(u, uid) }

func untrusted(format string, args ...any) *Error {
	return &Error{Code: codes.PermissionDenied, cause: ErrDaemonUnreachable, Message: fmt.Sprintf(format, args...) +
		" Nothing was sent. Run agbox as the user that runs agboxd, or set XDG_RUNTIME_DIR or AGBOX_HOME to a folder of your own."}
}
