package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
)

const (
	// DefaultStartTimeout is how long a started daemon may take until its first answer.
	DefaultStartTimeout = 20 * time.Second

	// startPause is the pause between two attempts to connect to a starting daemon. The
	// daemon cannot signal yet that it listens.
	startPause = 5 * time.Millisecond
	// winnerGrace is how long another daemon may take to answer after ours exited, if the
	// lock does not name one.
	winnerGrace = 500 * time.Millisecond
	// longestRestart is the maximum pause before a daemon that found another one is
	// started again. It is less than winnerGrace.
	longestRestart = 200 * time.Millisecond
	// exitRuns is the exit code of an agboxd that found another one running.
	exitRuns = 4
	// logTail is how many bytes of its log are shown if a daemon exits.
	logTail  = 4 << 10
	logLines = 5
)

// DaemonConfig says how to start a daemon. The zero value is valid.
type DaemonConfig struct {
	// Binary is the path of agboxd. If empty, FindDaemon finds it.
	Binary string
	// Timeout bounds the wait. 0 means DefaultStartTimeout.
	Timeout time.Duration
}

// DaemonProcess is a daemon that answers calls.
type DaemonProcess struct {
	PID int
	// Started is false if a daemon was running already or another caller was faster.
	Started bool
	// Log is the path of the log of a daemon that this call started.
	Log string
}

// FindDaemon looks for agboxd beside the running program, then in PATH. If it finds none, the
// error says what is missing and how to install it. agboxd may be a script that starts the
// daemon from elsewhere, so only the daemon itself can tell whether its agbox-init is there.
func FindDaemon() (string, error) {
	own, err := os.Executable()
	if err == nil {
		own, err = filepath.EvalSymlinks(own)
	}
	if err != nil {
		own = os.Args[0]
	}
	return findDaemon(own)
}

// installAll says how to install what is missing. Without cgo, agbox-init runs in every image.
const installAll = "`make install` in the repository of agbox installs all three programs, and so does\n" +
	"  CGO_ENABLED=0 go install github.com/agbox/agbox/cmd/...@latest"

// findDaemon does the work of FindDaemon for the program at own.
func findDaemon(own string) (string, error) {
	found, err := exec.LookPath(filepath.Join(filepath.Dir(own), "agboxd"))
	if err != nil {
		found, err = exec.LookPath("agboxd")
	}
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		return "", startError("The daemon is not installed: agboxd is neither beside %s nor in PATH. agbox needs agboxd and, beside it, agbox-init. %s", own, installAll)
	}
	return found, nil
}

// StartDaemon starts a daemon for the install that the environment names. It returns when
// the daemon's socket answers. The daemon gets a session of its own, so it outlives the
// caller. If a daemon runs already, StartDaemon starts none. Of several concurrent
// callers, one starts it.
func StartDaemon(ctx context.Context, config DaemonConfig) (DaemonProcess, error) {
	install, err := paths.FromEnv()
	if err != nil {
		return DaemonProcess{}, startError("agboxd cannot be started: %v.", err)
	}
	if problem := paths.SocketProblem(install.Socket()); problem != "" {
		return DaemonProcess{}, &Error{Code: codes.InvalidArgument, Message: problem}
	}
	p := DaemonProcess{Log: install.DaemonLog()}
	if p.PID, err = listenerPID(ctx, install.Socket(), ownUsers()); err == nil {
		return p, nil
	}
	if !isDown(err) {
		return p, dialError(ctx, install.Socket(), err)
	}
	if config.Timeout <= 0 {
		config.Timeout = DefaultStartTimeout
	}
	if config.Binary == "" {
		if config.Binary, err = FindDaemon(); err != nil {
			return p, err
		}
	}
	s := &starting{install: install, binary: config.Binary, timeout: config.Timeout}
	turn, err := s.takeTurn(ctx)
	if err != nil {
		return p, err
	}
	defer turn.Close()
	if p.PID, err = listenerPID(ctx, install.Socket(), ownUsers()); err == nil {
		return p, nil
	}
	if err := s.spawn(); err != nil {
		return p, err
	}
	if p.PID, err = s.await(ctx); err != nil {
		return p, err
	}
	if p.Started = p.PID == s.pid; !p.Started {
		s.withdraw()
	}
	return p, nil
}

// starting is a daemon that is being started.
type starting struct {
	install paths.Install
	binary  string
	timeout time.Duration
	pid     int
	process *os.Process
	// ended is closed when the process has ended. status then has its exit status.
	ended  chan struct{}
	status error
	// logBefore describes the log before the first start. It is nil until then.
	logBefore os.FileInfo
}

// spawn starts the process. It may be called again when the process has ended.
func (s *starting) spawn() error {
	log, err := os.OpenFile(s.install.DaemonLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return startError("agboxd cannot be started, because its log cannot be opened: %v.", err)
	}
	defer log.Close()
	if st, err := log.Stat(); err == nil && s.logBefore == nil {
		s.logBefore = st
	}
	// No context: the daemon outlives all contexts of the caller.
	cmd := exec.Command(s.binary, "run")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// The daemon must not block unmounting the caller's file system. So a relative
	// AGBOX_HOME would name another directory.
	cmd.Dir = "/"
	if home := os.Getenv("AGBOX_HOME"); home != "" {
		abs, err := filepath.Abs(home)
		if err != nil {
			return startError("agboxd cannot be started: %v.", err)
		}
		cmd.Env = append(os.Environ(), "AGBOX_HOME="+abs)
	}
	if err := cmd.Start(); err != nil {
		return startError("agboxd cannot be started: %v.", err)
	}
	s.pid, s.process = cmd.Process.Pid, cmd.Process
	s.ended = make(chan struct{})
	// Reaps the daemon if it ends before the caller. Nobody waits for this goroutine,
	// because the daemon is meant to outlive the caller.
	go func() {
		defer close(s.ended)
		s.status = cmd.Wait()
	}()
	return nil
}

// turnBound is how long a caller that starts a daemon is waited for. It may have been
// stopped by job control.
const turnBound = DefaultStartTimeout

// takeTurn waits until no other caller starts a daemon of this install, in this process or
// another, and makes others wait until the returned file is closed. So of many clients that
// miss the same daemon, one starts it. Without a file, or on a file system without locks,
// nobody waits: the daemon's own lock still allows only one daemon.
func (s *starting) takeTurn(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(s.install.Data, 0o700); err != nil {
		return nil, startError("agboxd cannot be started, because its data directory cannot be made: %v.", err)
	}
	turn, err := os.OpenFile(s.install.StartLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil
	}
	bound := time.NewTimer(turnBound)
	defer bound.Stop()
	look := time.NewTicker(startPause)
	defer look.Stop()
	for {
		if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return turn, nil
		}
		select {
		case <-look.C:
			if _, err := listenerPID(ctx, s.install.Socket(), ownUsers()); err == nil {
				return turn, nil
			}
		case <-bound.C:
			return turn, nil
		case <-ctx.Done():
			_ = turn.Close() // nothing was written
			return nil, ended(ctx.Err())
		}
	}
}

// await waits until a daemon answers and returns its process id. If our process exited
// because of another daemon, and that one does not live on because it was being killed,
// await starts the process again.
func (s *starting) await(ctx context.Context) (int, error) {
	bound := time.NewTimer(s.timeout)
	defer bound.Stop()
	look := time.NewTicker(startPause)
	defer look.Stop()
	exited, pause := s.ended, firstPause
	var deadline, restart <-chan time.Time
	for {
		select {
		case <-look.C:
			if pid, err := listenerPID(ctx, s.install.Socket(), ownUsers()); err == nil {
				return pid, nil
			}
			if deadline != nil && s.rivalRuns() {
				deadline = time.After(winnerGrace)
			}
		case <-exited:
			// It may have found another daemon, which will answer soon.
			exited = nil
			deadline = time.After(winnerGrace)
			if s.lost() {
				restart = time.After(pause)
				pause = min(2*pause, longestRestart)
			}
		case <-restart:
			if s.rivalRuns() {
				restart = time.After(pause)
				continue
			}
			if err := s.spawn(); err != nil {
				return 0, err
			}
			exited, deadline, restart = s.ended, nil, nil
		case <-deadline:
			return 0, s.failed()
		case <-bound.C:
			return 0, startError("agboxd (pid %d) was started but has not answered for %v. %s", s.pid, s.timeout, s.explain())
		case <-ctx.Done():
			return 0, ended(ctx.Err())
		}
	}
}

// failed returns the error of a process that has ended. A killed process may be started
// again. Any other reason would end the next one too.
func (s *starting) failed() error {
	var exit *exec.ExitError
	return &Error{
		Code:    codes.Unavailable,
		Message: fmt.Sprintf("agboxd ended right after its start (%s). %s", exitText(s.status), s.explain()),
		cause:   ErrDaemonUnreachable,
		lost:    errors.As(s.status, &exit) && !exit.Exited(),
	}
}

// lost reports whether a process that has ended found another daemon.
func (s *starting) lost() bool {
	var exit *exec.ExitError
	return errors.As(s.status, &exit) && exit.ExitCode() == exitRuns
}

// withdraw ends the process after another daemon has answered. Otherwise it would find
// the lock taken, or take it if that daemon is stopped first, although nobody wants it
// then.
func (s *starting) withdraw() {
	_ = s.process.Signal(syscall.SIGTERM) // fails if it has ended already
	select {
	case <-s.ended:
	case <-time.After(winnerGrace):
	}
}

// rivalRuns reports whether the lock of the install names a living process other than
// ours.
func (s *starting) rivalRuns() bool {
	text, err := os.ReadFile(s.install.Lock())
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && pid != s.pid && process.Lives(pid)
}

// explain quotes what the daemon has written to its log since the start.
func (s *starting) explain() string {
	path := s.install.DaemonLog()
	file, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("Its log %s cannot be read.", path)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return fmt.Sprintf("Its log %s cannot be read.", path)
	}
	from := max(0, st.Size()-logTail)
	if s.logBefore != nil && os.SameFile(st, s.logBefore) { // otherwise the daemon has begun a new file
		from = max(from, s.logBefore.Size())
	}
	buf := make([]byte, max(st.Size()-from, 0))
	n, _ := file.ReadAt(buf, from)
	lines := strings.Split(strings.TrimSpace(string(buf[:n])), "\n")
	lines = lines[max(0, len(lines)-logLines):]
	if len(lines) == 1 && lines[0] == "" {
		return fmt.Sprintf("It wrote nothing to its log %s.", path)
	}
	return fmt.Sprintf("The end of its log %s:\n  %s", path, strings.Join(lines, "\n  "))
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

func startError(format string, args ...any) error {
	return &Error{Code: codes.Unavailable, Message: fmt.Sprintf(format, args...), cause: ErrDaemonUnreachable}
}

// listenerPID connects to a socket and returns the id of the process that listens on it.
func listenerPID(ctx context.Context, socket string, by users) (int, error) {
	conn, err := dialSocket(ctx, socket, by)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	pid, err := process.Peer(conn)
	if err != nil {
		return 0, err
	}
	if isEnding(ctx, conn) {
		return 0, syscall.ECONNREFUSED
	}
	return pid, nil
}

// isEnding reports whether the process behind a new connection is exiting: the socket of a
// killed daemon accepts connections until its last thread has ended, and closes them then.
// A daemon that serves sends the settings of HTTP/2 first. One that sends nothing for
// dialTimeout is slow or stopped, not ending.
func isEnding(ctx context.Context, conn net.Conn) bool {
	if conn.SetReadDeadline(time.Now().Add(dialTimeout)) != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := conn.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
