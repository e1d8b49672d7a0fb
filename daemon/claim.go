package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

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

// handoverVariable tells the next binary what it inherits. It is read once and removed,
// so that no child process uses it.
const handoverVariable = "AGBOX_HANDOVER"

// handover is the content of the variable, in JSON. Later versions may add fields; these
// keep their meaning.
type handover struct {
	// PID is the process for which it is meant.
	PID int `json:"pid"`
	// Lock and Socket are descriptors.
	Lock   int `json:"lock"`
	Socket int `json:"socket"`
	// Path is the path of the socket. Device and Inode identify the file there.
	Path   string `json:"path"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	// Activated means that systemd keeps the socket.
	Activated bool `json:"activated"`
	// Binary is a descriptor of the new binary, or 0. Only the execution needs it.
	Binary int `json:"binary,omitempty"`
	// Supervisor is the result of the check of the new binary.
	Supervisor supervisorFile `json:"supervisor"`
}

// inherit returns the claim that the process got in an upgrade, or nil if it got none. It
// leaves out a socket that is no longer valid.
func inherit(install paths.Install) (*claim, error) {
	text, ok := os.LookupEnv(handoverVariable)
	if !ok {
		return nil, nil
	}
	if err := os.Unsetenv(handoverVariable); err != nil {
		return nil, err
	}
	var h handover
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, fmt.Errorf("read %s: %w", handoverVariable, err)
	}
	if h.PID != os.Getpid() {
		return nil, nil // meant for another process
	}
	if h.Binary > 0 {
		_ = unix.Close(h.Binary)
		// The kernel names a process after the path that was executed, here a descriptor's.
		_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	}
	lock, err := inheritLock(h.Lock, install)
	if err != nil {
		return nil, errors.Join(err, unix.Close(h.Lock), unix.Close(h.Socket))
	}
	c := &claim{install: install, lock: lock, socket: -1, handedOver: true, supervisor: h.Supervisor}
	if err := h.checkSocket(install); err != nil {
		_ = unix.Close(h.Socket)
		return c, fmt.Errorf("the socket is made anew: %w", err)
	}
	unix.CloseOnExec(h.Socket)
	c.socket, c.activated = h.Socket, h.Activated
	return c, nil
}

// inheritLock takes over the descriptor of the lock file, and with it the lock.
func inheritLock(fd int, install paths.Install) (*os.File, error) {
	var have, want unix.Stat_t
	if err := unix.Fstat(fd, &have); err != nil {
		return nil, fmt.Errorf("the descriptor of the lock: %w", err)
	}
	if err := unix.Stat(install.Lock(), &want); err != nil {
		return nil, err
	}
	if have.Dev != want.Dev || have.Ino != want.Ino {
		return nil, fmt.Errorf("the descriptor of the lock is not %s", install.Lock())
	}
	unix.CloseOnExec(fd)
	// The lock is held already through this open file, or it is taken now.
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("lock %s: %w", install.Lock(), err)
	}
	return os.NewFile(uintptr(fd), install.Lock()), nil
}

func (h handover) checkSocket(install paths.Install) error {
	if h.Path != install.Socket() {
		return fmt.Errorf("it listens on %s, and this agboxd listens on %s", h.Path, install.Socket())
	}
	if err := checkListening(h.Socket, h.Path); err != nil {
		return err
	}
	device, inode, err := identity(h.Path)
	if err == nil && (device != h.Device || inode != h.Inode) {
		err = fmt.Errorf("another socket stands at %s", h.Path)
	}
	return err
}

func identity(path string) (device, inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, 0, fmt.Errorf("look at %s: %w", path, err)
	}
	return st.Dev, st.Ino, nil
}

// become replaces this process by the binary and hands the claim on. It returns only if
// that fails, with the claim unchanged. It closes the file of the binary.
func (c *claim) become(next *successor, arguments []string) error {
	defer next.file.Close()
	if c.left = slices.DeleteFunc(c.left, ended); len(c.left) > 0 {
		return errLeft
	}
	env, err := c.handoverEnv(next)
	if err != nil {
		return err
	}
	// The new program starts with this setting until it has set up its own: a SIGHUP in
	// between must not end it.
	signal.Ignore(syscall.SIGHUP)
	if err := errors.Join(keepOnExec(c.lock.Fd(), true), keepOnExec(uintptr(c.socket), true), keepOnExec(next.file.Fd(), true)); err != nil {
		return err
	}
	err = syscall.Exec(descriptorPath(next.file), append([]string{next.binary}, arguments...), env)
	return errors.Join(fmt.Errorf("execute %s: %w", next.binary, err),
		keepOnExec(c.lock.Fd(), false), keepOnExec(uintptr(c.socket), false))
}

func (c *claim) handoverEnv(next *successor) ([]string, error) {
	h := handover{
		PID: os.Getpid(), Lock: int(c.lock.Fd()), Socket: c.socket,
		Path: c.install.Socket(), Activated: c.activated, Supervisor: next.supervisor,
		Binary: int(next.file.Fd()),
	}
	// If the socket file is missing, the next daemon makes a new one.
	h.Device, h.Inode, _ = identity(h.Path)
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), handoverVariable+"="+string(text)), nil
}

// keepOnExec sets whether a descriptor stays open when this process becomes another
// program.
func keepOnExec(fd uintptr, keep bool) error {
	flags := unix.FD_CLOEXEC
	if keep {
		flags = 0
	}
	_, err := unix.FcntlInt(fd, unix.F_SETFD, flags)
	return err
}
