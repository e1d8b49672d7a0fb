package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ErrRuns means that another daemon runs for the install.
var ErrRuns = errors.New("another daemon runs")

// makeDirs makes the folders of the install, private to this user. A folder in a shared
// temporary directory may have been made by somebody else.
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

// lockInstall makes this process the only daemon of the install. The lock file has its
// process id. The lock ends with the process, however it ends. If the holder was killed or is
// exiting, lockInstall waits. If it lives, lockInstall fails, unless mayEnd says that it may end by
// itself soon.
func lockInstall(ctx context.Context, install paths.Install, log *slog.Logger, mayEnd func() bool) (*os.File, error) {
	f, err := os.OpenFile(install.Lock(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the install: %w", err)
	}
	err = outlive(ctx, log, func() error {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", install.Lock(), err)
		}
		pid := readHolder(f)
		if !process.Lives(pid) {
			return &inTheWay{pid: pid, what: install.Lock()}
		}
		err = running("Another agboxd runs for %s (pid %d): use it, or stop it with \"agbox daemon stop\".", install.Data, pid)
		if mayEnd() {
			return &inTheWay{pid: pid, what: install.Lock(), lives: err}
		}
		return err
	})
	if err == nil {
		err = writeHolder(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// never is for lockInstall by a daemon: one that lives has the install.
func never() bool { return false }

// silent reports whether no daemon answers on the socket.
func silent(install paths.Install) bool {
	conn, err := net.Dial("unix", install.Socket())
	if err == nil {
		_ = conn.Close()
	}
	return err != nil
}

// readHolder returns the process id that the holder of the lock wrote. Between locking and
// writing it is that of the one before, or 0.
func readHolder(f *os.File) int {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// writeHolder overwrites the id in place, which needs no space: a file that is made empty first
// gives its block away, and on a full disk somebody else takes it.
func writeHolder(f *os.File) error {
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	_, err := f.WriteAt(text, 0)
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("write the lock of the install: %w", err)
	}
	return nil
}

func running(format string, args ...any) error {
	return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_INTERNAL_ERROR, format, args...).Because(ErrRuns)
}

// makeSocket opens the daemon's socket. It replaces a stale file, under a lock. It does
// not touch a socket on which a process answers.
func makeSocket(ctx context.Context, install paths.Install, log *slog.Logger) (*net.UnixListener, error) {
	path := install.Socket()
	lock, err := os.OpenFile(install.SocketLock(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the socket: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket: %w", err)
	}
	if err := outlive(ctx, log, func() error { return dropStale(path) }); err != nil {
		return nil, err
	}
	// The folder is private already. The mode protects the socket even if it is not.
	old := unix.Umask(0o177)
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return lis, nil
}

// dropStale removes the socket of a daemon that has ended. One that is ending still
// accepts connections and is reported as inTheWay.
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
	if err != nil {
		return os.Remove(path)
	}
	defer conn.Close()
	if pid, err := process.Peer(conn); err == nil && !process.Lives(pid) {
		return &inTheWay{pid: pid, what: path}
	}
	return running("Another daemon answers on %s; stop it, or set AGBOX_HOME for a second install.", filepath.Clean(path))
}

// outliveWithin bounds the wait for an ending process. The kernel needs milliseconds
// to close the files of a killed daemon, longer where a disk is slow. It is shorter
// than a client waits for a daemon that it has started.
var outliveWithin = 10 * time.Second

// outlivePause is the pause between two attempts. No signal announces that a process has
// closed its files: its id belongs to a zombie before that, and may be reused after it.
const outlivePause = 5 * time.Millisecond

// inTheWay is the error that a process still holds a file although it no longer lives, or should
// not for long.
type inTheWay struct {
	// pid is 0 if the holder has not written its id yet.
	pid int
	// what is the path of the file that it holds.
	what string
	// lives is the error if the process lives and does not end.
	lives error
}

// Error says what to do if waiting did not help.
func (e *inTheWay) Error() string {
	if e.lives != nil {
		return e.lives.Error()
	}
	return fmt.Sprintf("The agboxd that held %s (pid %d) was killed, but the kernel has not ended it in %v, most likely because a disk does not answer. Start agboxd again when that process is gone.",
		e.what, e.pid, outliveWithin)
}

// Unwrap treats the process as a running daemon, because it may still be writing.
func (e *inTheWay) Unwrap() error {
	if e.lives != nil {
		return e.lives
	}
	return ErrRuns
}

// outlive calls try until it returns something other than an inTheWay, for at most
// outliveWithin.
func outlive(ctx context.Context, log *slog.Logger, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, outliveWithin)
	defer cancel()
	again := time.NewTicker(outlivePause)
	defer again.Stop()
	for told := false; ; told = true {
		err := try()
		var held *inTheWay
		if !errors.As(err, &held) {
			return err
		}
		if !told {
			log.Info("the agboxd before this one is still ending and is waited for", "pid", held.pid, "holds", held.what)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}
