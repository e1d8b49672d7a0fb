package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/paths"
)

// claim is what makes a process the daemon of an install: its lock and its listening
// socket. An upgrade hands both on. So no other daemon can start in between, and
// connections wait in the accept queue.
type claim struct {
	install paths.Install
	lock    *os.File
	// socket is a listening descriptor that outlives the listeners made from it. It is -1
	// while there is none. It is not an os.File, which would make it and the listeners
	// blocking.
	socket int
	// activated means that systemd made the socket and keeps it.
	activated bool
	// handedOver means that the previous daemon was upgraded and handed its work over.
	handedOver bool
	// supervisor is what the previous daemon handed on about the supervisor's binary.
	supervisor supervisorFile
	// left has channels that are closed when work that an earlier generation abandoned
	// has ended.
	left []<-chan struct{}
}

// takeClaim takes over the claim that the previous daemon of this process or systemd
// passed on. Otherwise it takes the lock.
func takeClaim(ctx context.Context, install paths.Install, log *slog.Logger) (*claim, error) {
	c, err := inherit(install)
	if err != nil {
		log.Error("what the daemon before this one handed on cannot be used", "error", err)
	}
	if c == nil {
		c = &claim{install: install, socket: -1}
		if c.lock, err = lockInstall(ctx, install, log, never); err != nil {
			return nil, err
		}
	}
	if c.socket == -1 {
		if c.socket, err = activation(install); err != nil {
			return nil, errors.Join(err, c.lock.Close())
		}
		c.activated = c.socket != -1
	}
	return c, nil
}

// release gives the claim up permanently.
func (c *claim) release() {
	c.leaveSocket()
	_ = c.lock.Close()
}

// leaveSocket stops listening, so that new callers see that no daemon runs. A socket of
// systemd stays, and its connections wait for the next daemon.
func (c *claim) leaveSocket() {
	if c.socket == -1 {
		return
	}
	if !c.activated {
		_ = os.Remove(c.install.Socket())
	}
	_ = unix.Close(c.socket)
	c.socket = -1
}

// listen returns a listener on the socket of the claim, and makes the socket if there is
// none. Closing the listener does not close the socket.
func (c *claim) listen(ctx context.Context, log *slog.Logger) (*server.Listener, error) {
	if c.socket == -1 {
		made, err := makeSocket(ctx, c.install, log)
		if err != nil {
			return nil, err
		}
		c.socket, err = duplicate(made)
		if err := errors.Join(err, made.Close()); err != nil {
			return nil, err
		}
	}
	dup, err := unix.FcntlInt(uintptr(c.socket), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the socket: %w", err)
	}
	file := os.NewFile(uintptr(dup), c.install.Socket())
	lis, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", c.install.Socket(), err)
	}
	unixListener, ok := lis.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no Unix socket", c.install.Socket()), lis.Close())
	}
	return server.NewListener(unixListener, log), nil
}

func duplicate(lis *net.UnixListener) (fd int, err error) {
	lis.SetUnlinkOnClose(false)
	raw, err := lis.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(of uintptr) { fd, dupErr = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(err, dupErr)
}

// activationStart is the first descriptor that systemd passes (sd_listen_fds(3)).
const activationStart = 3

// activation returns the listening socket that systemd passed, or -1 if it passed none.
//
// github.com/coreos/go-systemd/activation is not used: it returns an os.File, which
// closes its descriptor when it is garbage-collected. A claim keeps the descriptor's
// number, which outlives an upgrade. The checks of the socket are needed in any case.
func activation(install paths.Install) (fd int, err error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // child processes must not inherit it
	}
	if pid != strconv.Itoa(os.Getpid()) || count == "" || count == "0" {
		return -1, nil
	}
	if count != "1" {
		return -1, fmt.Errorf("systemd passed %s sockets; agboxd.socket must have one ListenStream, %s", count, install.Socket())
	}
	if err := checkListening(activationStart, install.Socket()); err != nil {
		return -1, fmt.Errorf("the socket that systemd passed cannot be used (%w); agboxd.socket needs ListenStream=%s", err, install.Socket())
	}
	unix.CloseOnExec(activationStart)
	// Listen again, so that the kernel reports this process to clients as the one behind
	// the socket (unix(7), SO_PEERCRED). "agbox daemon stop" depends on that.
	if err := unix.Listen(activationStart, unix.SOMAXCONN); err != nil {
		return -1, fmt.Errorf("listen on the socket that systemd passed: %w", err)
	}
	return activationStart, nil
}

// checkListening checks that fd is a stream socket that listens on path and, as far as
// possible, that path still refers to it.
func checkListening(fd int, path string) error {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	address, ok := name.(*unix.SockaddrUnix)
	switch {
	case !ok || address.Name != path:
		return fmt.Errorf("it is not %s", path)
	case listens == 0 || kind != unix.SOCK_STREAM:
		return errors.New("it does not listen for streams")
	}
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&os.ModeSocket == 0 {
		err = fmt.Errorf("%s is not a socket any more", path)
	}
	return err
}
