package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
)

// ErrRuns says that another daemon has the install.
var ErrRuns = errors.New("another daemon runs")

// checkSocketPath refuses an install whose socket the kernel would not take,
// before anything is made in it.
func checkSocketPath(install paths.Install) error {
	path := install.Socket()
	if len(path) <= paths.MaxSocketPath {
		return nil
	}
	return fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
		"The socket path %s has %d bytes, and Linux takes at most %d; set XDG_RUNTIME_DIR or AGBOX_HOME to a shorter path.",
		path, len(path), paths.MaxSocketPath)
}

// makeDirs makes the folders of the install, private to this user. A folder
// under a shared temporary directory may have been made by somebody else.
func makeDirs(install paths.Install) error {
	for _, dir := range []string{install.Data, install.Run, install.Logs(), install.Supervisors()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("the folder %s cannot be made: %w; give agbox another place with AGBOX_HOME", dir, err)
		}
	}
	info, err := os.Lstat(install.Run)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() {
		return fmt.Errorf("%s belongs to somebody else; set XDG_RUNTIME_DIR or AGBOX_HOME to a folder of your own", install.Run)
	}
	for _, dir := range []string{install.Data, install.Run} {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("make %s private: %w", dir, err)
		}
	}
	return nil
}

// lockInstall makes this the one daemon of the install; the lock file names it.
// The lock ends with the process, whatever ends it.
func lockInstall(install paths.Install) (*os.File, error) {
	f, err := os.OpenFile(install.Lock(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the install: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := readHolder(f)
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", install.Lock(), err)
		}
		return nil, running(install, holder)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the lock of the install: %w", err)
	}
	return f, nil
}

// readHolder returns the pid that the holder of the lock wrote; "?" between its
// locking and its writing.
func readHolder(f *os.File) string {
	raw, _ := io.ReadAll(io.LimitReader(f, 32))
	if pid := strings.TrimSpace(string(raw)); pid != "" {
		return pid
	}
	return "?"
}

func running(install paths.Install, pid string) error {
	return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_INTERNAL_ERROR,
		"Another agboxd runs for %s (pid %s): use it, or stop it with \"agbox daemon stop\".", install.Data, pid).
		With("pid", pid).Because(ErrRuns)
}

// makeSocket opens the daemon's socket. A stale file is replaced under a lock; a
// socket that somebody answers on is left alone.
func makeSocket(install paths.Install) (*net.UnixListener, error) {
	path := install.Socket()
	lock, err := os.OpenFile(install.SocketLock(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the socket: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	if err := dropStale(path); err != nil {
		return nil, err
	}
	// The folder is private already; the mode holds also where it is not.
	old := unix.Umask(0o177)
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return lis, nil
}

// dropStale removes the socket of a daemon that is gone.
func dropStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%s is not a socket; move it away, it is in the way of the daemon's", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_INTERNAL_ERROR,
			"Another daemon answers on %s; stop it, or set AGBOX_HOME for a second install.", filepath.Clean(path)).Because(ErrRuns)
	}
	return os.Remove(path)
}
