package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waits is what a daemon logs while it waits for the previous one.
const waits = "the agboxd before this one is still ending and is waited for"

// listenVariable makes the test binary listen on descriptor 3 and exit.
const listenVariable = "AGBOXD_TEST_LISTEN"

func listenAndEnd() int {
	if err := unix.Listen(3, 1); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// zombie runs a command to its end and returns the id of its process, which is not reaped
// before the test ends.
func zombie(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	var end unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &end, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// gone returns the id of a process that has ended and was reaped.
func gone(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// hold takes the lock of an install, as if a process with the given text in the lock file
// held it.
func (l *life) hold(t *testing.T, holder string) (release func()) {
	t.Helper()
	if err := makeDirs(l.Paths); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.Paths.Lock(), []byte(holder), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(l.Paths.Lock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func TestTheLockOfAHolderThatNoLongerLivesIsWaitedFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		holder func(*testing.T) string
	}{
		{"a zombie", func(t *testing.T) string { return fmt.Sprintln(zombie(t, exec.Command("true"))) }},
		{"a process that is gone", func(t *testing.T) string { return fmt.Sprintln(gone(t)) }},
		{"one that has not yet written its id", func(*testing.T) string { return "" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLife(t)
			release := l.hold(t, c.holder(t))
			waited := 0
			l.at[waits] = func(error) { waited++; release() }
			lock, err := lockInstall(t.Context(), l.Paths, l.Log, never)
			if err != nil || waited != 1 {
				t.Fatalf("lockInstall gives %v after it said %d times that it waits", err, waited)
			}
			defer lock.Close()
			if text, err := os.ReadFile(l.Paths.Lock()); err != nil || string(text) != fmt.Sprintln(os.Getpid()) {
				t.Errorf("the lock file holds %q (%v)", text, err)
			}
		})
	}
}

// living starts a process that lives as long as the test, and returns its id.
func living(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

func TestTheLockOfALivingHolderIsRefusedAtOnce(t *testing.T) {
	l := newLife(t)
	pid := living(t)
	l.hold(t, fmt.Sprintln(pid))
	l.at[waits] = func(error) { t.Error("a living daemon is waited for") }
	err := Run(t.Context(), l.Config)
	if !errors.Is(err, ErrRuns) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", pid)) {
		t.Errorf("Run gives %v", err)
	}
}

// TestDoctorWaitsForADaemonThatOnlyTriesToStart: a client that waits for a daemon starts one again
// and again, which ends for the reason that doctor mends.
func TestDoctorWaitsForADaemonThatOnlyTriesToStart(t *testing.T) {
	l := newLife(t)
	pid := living(t)
	release := l.hold(t, fmt.Sprintln(pid))
	waited := 0
	l.at[waits] = func(error) { waited++; release() }
	if _, err := Doctor(t.Context(), l.Config, false); errors.Is(err, ErrRuns) || waited != 1 {
		t.Errorf("without an answer Doctor gives %v after it said %d times that it waits", err, waited)
	}

	release()
	l.hold(t, fmt.Sprintln(pid))
	l.at[waits] = func(error) { t.Error("a daemon that answers is waited for") }
	answers, err := net.Listen("unix", l.Paths.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	if _, err := Doctor(t.Context(), l.Config, false); !errors.Is(err, ErrRuns) {
		t.Errorf("beside a daemon that answers Doctor gives %v", err)
	}
}

func TestAHolderThatNeverEndsIsNotWaitedForForEver(t *testing.T) {
	old := outliveWithin
	outliveWithin = time.Millisecond
	defer func() { outliveWithin = old }()
	l := newLife(t)
	pid := zombie(t, exec.Command("true"))
	l.hold(t, fmt.Sprintln(pid))
	err := Run(t.Context(), l.Config)
	if !errors.Is(err, ErrRuns) || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d) was killed", pid)) {
		t.Errorf("Run gives %v", err)
	}
}

func TestAStopEndsTheWaitForTheLock(t *testing.T) {
	l := newLife(t)
	l.hold(t, fmt.Sprintln(gone(t)))
	ctx, cancel := context.WithCancel(t.Context())
	l.at[waits] = func(error) { cancel() }
	if err := Run(ctx, l.Config); err != nil {
		t.Errorf("Run gives %v", err)
	}
}

// The kernel may close the lock of a killed daemon before its socket.
func TestTheSocketOfADaemonThatNoLongerLivesIsWaitedFor(t *testing.T) {
	l := newLife(t)
	if err := makeDirs(l.Paths); err != nil {
		t.Fatal(err)
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.Paths.Socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	lis.SetUnlinkOnClose(false)
	defer lis.Close()
	file, err := lis.File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), listenVariable+"=yes")
	child.ExtraFiles = []*os.File{file}
	zombie(t, child)
	_ = file.Close()
	waited := 0
	l.at[waits] = func(error) { waited++; _ = lis.Close() }
	made, err := makeSocket(t.Context(), l.Paths, l.Log)
	if err != nil || waited != 1 {
		t.Fatalf("makeSocket gives %v after it said %d times that it waits", err, waited)
	}
	_ = made.Close()
}
