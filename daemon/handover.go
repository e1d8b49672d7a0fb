package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

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
