package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/agbox/agbox/proto/agbox/caller"
)

// socketBuffer is the requested size of both socket buffers. Some versions of grpc-go can
// stall permanently with several hundred concurrent calls if one burst of frames does not
// fit into the socket's buffer (grpc-go issue 9330). The default of a Unix socket is 208
// KiB. The kernel limits it to net.core.wmem_max.
const socketBuffer = 4 << 20

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
	var own *Error
	if errors.As(err, &own) {
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

// identifyUnary tells the daemon that the call is of a client of ours. It treats others as
// clients of the published contract.
func identifyUnary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(metadata.AppendToOutgoingContext(ctx, caller.Header, caller.Version), method, req, reply, conn, opts...)
}

// identifyStream is identifyUnary for streams.
func identifyStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(metadata.AppendToOutgoingContext(ctx, caller.Header, caller.Version), desc, conn, method, opts...)
}
