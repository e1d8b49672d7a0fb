// Package guest is the daemon's end of the link to the supervisor in a sandbox.
//
// Everything that arrives here was sent, or put in the way, by a container in
// which anything may run: the socket is opened without following anything, and
// replies are bounded and checked before anybody acts on them.
package guest

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/version"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// Dial connects to the supervisor that listens in linkDir and greets it, until
// ctx ends. Its errors are fault.Errors:
//
//   - SUPERVISOR_UNREACHABLE (errdefs.ErrUnavailable): nobody listens there, or
//     there is no answer in time; another try may succeed.
//   - SUPERVISOR_TAMPERED (errdefs.ErrFailedPrecondition): something else stands
//     in the socket's place, or it does not speak the protocol.
//
// Supervisors of every protocol version from 1 on are accepted, older and newer
// than this build.
func Dial(ctx context.Context, linkDir string) (*Conn, error) {
	raw, err := connect(ctx, linkDir)
	if err != nil {
		return nil, err
	}
	c := newConn(raw)
	if err := c.hello(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connect opens the socket beneath the folder and connects to what it opened, so
// that nothing can be put in its place in between. The way through /proc also
// has no limit on the length of the path.
func connect(ctx context.Context, linkDir string) (net.Conn, error) {
	dir, err := unix.Open(linkDir, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(linkDir, err)
	}
	defer func() { _ = unix.Close(dir) }()
	sock, err := unix.Openat(dir, paths.LinkSocket, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, openError(linkDir+"/"+paths.LinkSocket, err)
	}
	defer func() { _ = unix.Close(sock) }()
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return nil, openError(linkDir+"/"+paths.LinkSocket, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, tampered("something that is not a socket stands in the place of its socket", nil)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock))
	if err != nil {
		return nil, unreachable("nobody accepts connections on its socket", err)
	}
	return conn, nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return tampered("its link folder was replaced", err)
	case errors.Is(err, unix.ENOENT):
		return unreachable("its socket is not there", err)
	}
	return unreachable(fmt.Sprintf("its socket %s cannot be opened", path), err)
}

// hello greets the supervisor and learns its boot id.
func (c *Conn) hello(ctx context.Context) error {
	reply, err := c.client.Hello(ctx, &guestv1.HelloRequest{
		Protocol:      wire.Protocol,
		DaemonVersion: version.Version,
	})
	if err != nil {
		return c.explain(ctx, err)
	}
	if reply.GetProtocol() == 0 || reply.GetBootId() == "" || len(reply.GetBootId()) > wire.MaxBootID ||
		len(reply.GetSupervisorVersion()) > maxVersion ||
		reply.GetMainExecId() != "" && !ids.Valid(reply.GetMainExecId()) {
		return tampered("its greeting does not follow the protocol", nil)
	}
	c.protocol = reply.GetProtocol()
	c.bootID, c.version = reply.GetBootId(), reply.GetSupervisorVersion()
	main := reply.GetMainExecId()
	c.mainID.Store(&main)
	return nil
}

// maxVersion is the longest supervisor version that is accepted, in bytes.
const maxVersion = 256

func tampered(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_TAMPERED,
		"The sandbox's supervisor cannot be trusted any more: %s. Save what you need from its logs, then remove the sandbox.", what).Because(cause)
}

func unreachable(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
		"The sandbox's supervisor does not answer: %s. Try again; if it stays so, stop and start the sandbox.", what).Because(cause)
}

// newConn wraps a connection; it belongs to the Conn from then on.
func newConn(raw net.Conn) *Conn {
	g := newGuard(raw)
	c := &Conn{guard: g, done: make(chan struct{})}
	c.rpc = ttrpc.NewClient(g, ttrpc.WithOnClose(func() { close(c.done) }))
	c.client = guestv1.NewSupervisorClient(c.rpc)
	return c
}
