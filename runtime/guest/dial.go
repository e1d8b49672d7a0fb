// Package guest is the daemon's end of the link to the supervisor in a sandbox.
//
// A container may run hostile code, so the socket and every reply are untrusted:
// the socket is opened without following symbolic links, and replies are bounded
// and checked before use.
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
	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/internal/version"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// Check decides about the process that listens on a socket, before anything is sent to
// it. pid is 0 if the process has no id in the PID namespace of this daemon. A refusal
// should be Tampered, or an error that says why nobody can tell.
type Check func(ctx context.Context, pid int) error

// Dial connects to the supervisor that listens in linkDir and exchanges greetings.
// ctx bounds both, and the call of check. Its errors are those of check, and fault.Errors:
//
//   - SUPERVISOR_UNREACHABLE (errdefs.ErrUnavailable): nothing listens there, or
//     the answer did not come in time; a retry may succeed.
//   - SUPERVISOR_TAMPERED (errdefs.ErrFailedPrecondition): the socket was replaced,
//     or the supervisor violates the protocol.
//
// Dial accepts supervisors of every protocol version from 1 on, older and newer
// than this build.
func Dial(ctx context.Context, linkDir string, check Check) (*Conn, error) {
	raw, err := connect(ctx, linkDir, check)
	if err != nil {
		return nil, err
	}
	c := newConn(raw)
	if err := c.hello(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connect opens the socket in the directory and connects through its descriptor, so
// that the container cannot replace it in between. The path in /proc also avoids
// the length limit of socket addresses.
func connect(ctx context.Context, linkDir string, check Check) (net.Conn, error) {
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
		return nil, Tampered("its socket was replaced by something that is not a socket", nil)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", sock))
	if err != nil {
		return nil, unreachable("nothing accepts connections on its socket", err)
	}
	// The kernel keeps the credentials of the process that called listen.
	pid, err := process.Peer(conn)
	if err != nil {
		return nil, errors.Join(unreachable("the kernel does not tell who listens on its socket", err), conn.Close())
	}
	if err := check(ctx, pid); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return Tampered("its link directory was replaced", err)
	case errors.Is(err, unix.ENOENT):
		return unreachable("its socket does not exist", err)
	}
	return unreachable(fmt.Sprintf("its socket %s cannot be opened", path), err)
}

// hello exchanges greetings and stores what the supervisor says about itself.
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
		return Tampered("its greeting does not follow the protocol", nil)
	}
	c.protocol = reply.GetProtocol()
	c.bootID, c.version = reply.GetBootId(), reply.GetSupervisorVersion()
	c.logsDeleted = reply.GetLogsDeleted()
	main := reply.GetMainExecId()
	c.mainID.Store(&main)
	return nil
}

// maxVersion is the maximum length of a supervisor's version, in bytes.
const maxVersion = 256

// Tampered is the error for a supervisor that somebody replaced, or that violates the
// protocol. what says which, as a clause.
func Tampered(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_SUPERVISOR_TAMPERED,
		"The sandbox's supervisor can no longer be trusted: %s. Save what you need from its logs, then remove the sandbox.", what).Because(cause)
}

func unreachable(what string, cause error) *fault.Error {
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_SUPERVISOR_UNREACHABLE,
		"The sandbox's supervisor does not answer: %s. Try again; if that does not help, stop and start the sandbox.", what).Because(cause)
}

// newConn wraps raw in a Conn, which owns it from then on.
func newConn(raw net.Conn) *Conn {
	g := newGuard(raw)
	c := &Conn{guard: g, done: make(chan struct{})}
	c.rpc = ttrpc.NewClient(g, ttrpc.WithOnClose(func() { close(c.done) }))
	c.client, c.agents = guestv1.NewSupervisorClient(c.rpc), guestv1.NewAgentsClient(c.rpc)
	return c
}
