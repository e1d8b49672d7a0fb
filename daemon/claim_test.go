package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/paths"
)

func TestMain(m *testing.M) {
	if os.Getenv(listenVariable) != "" {
		os.Exit(listenAndEnd())
	}
	goleak.VerifyTestMain(m)
}

// newClaim claims a new install and listens on its socket.
func newClaim(t *testing.T) *claim {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "abd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	install := paths.Install{Data: filepath.Join(home, "data"), Run: filepath.Join(home, "run")}
	if err := makeDirs(install); err != nil {
		t.Fatal(err)
	}
	p, err := takeClaim(t.Context(), install, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.release)
	lis, err := p.listen(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// handOn sets the environment as become would, with duplicated descriptors as the next
// program would have them.
func handOn(t *testing.T, p *claim, change func(*handover)) {
	t.Helper()
	env, err := p.handoverEnv(&successor{})
	if err != nil {
		t.Fatal(err)
	}
	var h handover
	if err := json.Unmarshal([]byte(strings.TrimPrefix(env[len(env)-1], handoverVariable+"=")), &h); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []*int{&h.Lock, &h.Socket} {
		if *fd, err = unix.Dup(*fd); err != nil {
			t.Fatal(err)
		}
	}
	change(&h)
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(handoverVariable, string(text))
}

func TestTheNextDaemonInheritsLockAndSocket(t *testing.T) {
	old := newClaim(t)
	waiting, err := net.Dial("unix", old.install.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	handOn(t, old, func(*handover) {})
	next, err := takeClaim(t.Context(), old.install, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer next.release()
	if !next.handedOver || next.activated || os.Getenv(handoverVariable) != "" {
		t.Errorf("the next claim is %+v, and the variable is %q", next, os.Getenv(handoverVariable))
	}
	// As if the old program had ended.
	_ = old.lock.Close()
	_ = unix.Close(old.socket)
	old.socket = -1
	if _, err := lockInstall(t.Context(), old.install, slog.New(slog.DiscardHandler), never); !errors.Is(err, ErrRuns) {
		t.Errorf("a third daemon gets %v, want that another one runs", err)
	}
	lis, err := next.listen(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := lis.Accept()
	if err != nil {
		t.Fatalf("the connection that waited: %v", err)
	}
	_ = conn.Close()
	for _, fd := range []uintptr{next.lock.Fd(), uintptr(next.socket)} {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would pass to children (%v)", fd, err)
		}
	}
}

func TestAHandoverThatDoesNotFitIsNotUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*handover)
		// runs: this process can take the lock only if the handover was accepted.
		runs, socket bool
	}{
		{"for another process", func(h *handover) { h.PID++ }, true, false},
		{"with another lock", func(h *handover) { h.Lock = h.Socket }, true, false},
		{"of another path", func(h *handover) { h.Path += "x" }, false, false},
		{"of a socket that was replaced", func(h *handover) { h.Inode++ }, false, false},
		{"that fits", func(*handover) {}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			old := newClaim(t)
			handOn(t, old, c.change)
			next, err := takeClaim(t.Context(), old.install, slog.New(slog.DiscardHandler))
			if c.runs {
				if !errors.Is(err, ErrRuns) {
					t.Errorf("takeClaim gives %v, want that another daemon runs", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (next.socket != -1) != c.socket {
				t.Errorf("the next claim is %+v, want it to have the socket: %v", next, c.socket)
			}
			_ = next.lock.Close()
		})
	}
}

func TestABinaryThatCannotBeExecutedLeavesThePlaceAsItWas(t *testing.T) {
	p := newClaim(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	err = p.become(&successor{binary: file.Name(), file: file}, []string{"run"})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("become gives %v", err)
	}
	for _, fd := range []uintptr{p.lock.Fd(), uintptr(p.socket)} {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d would pass to children (%v)", fd, err)
		}
	}
	lis, err := p.listen(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if info, err := os.Stat(p.install.Socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v (%v)", info, err)
	}
	conn, err := net.Dial("unix", p.install.Socket())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestASocketOfSomethingElseIsRefused(t *testing.T) {
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("LISTEN_FDS", "2")
	if _, err := activation(paths.Install{Run: "/run/agbox"}); err == nil || !strings.Contains(err.Error(), "/run/agbox/agboxd.sock") {
		t.Errorf("two sockets give %v, want what to do", err)
	}
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "1")
	if fd, err := activation(paths.Install{Run: "/run/agbox"}); fd != -1 || err != nil {
		t.Errorf("what was meant for another process gives %d (%v)", fd, err)
	}
}
