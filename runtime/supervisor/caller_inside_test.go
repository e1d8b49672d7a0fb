package supervisor

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// asHeir in the environment makes the test binary a program that connects to that socket
// and leaves the connection to "sleep".
const asHeir = "AGBOX_TEST_AS_HEIR"

func init() {
	path := os.Getenv(asHeir)
	if path == "" {
		return
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		os.Exit(1)
	}
	f, err := c.File()
	if err != nil {
		os.Exit(1)
	}
	heir := exec.Command("sleep", "1000")
	heir.ExtraFiles = []*os.File{f}
	if heir.Start() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// TestAReusedPidIsNotTheCaller: whoever has connected has ended, and its pid is that of the
// first process of an exec now.
func TestAReusedPidIsNotTheCaller(t *testing.T) {
	dir, err := os.MkdirTemp("", "agbox-sup-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := newInside(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asHeir+"="+l.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.children.live[pid] = &child{pid: pid, execID: "victim"}
	if got, known := s.callerOf(c); got != "victim" || !known {
		t.Errorf("while it lives, the caller is %q, %v", got, known)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, known := s.callerOf(c); got != "" || !known {
		t.Errorf("after its end, the caller is %q, %v", got, known)
	}
	// A pid is not used again at will, so this process stands for the one that has it now.
	s.children.live[os.Getpid()] = &child{pid: os.Getpid(), execID: "victim"}
	if got := s.children.execOfPeer(os.Getpid(), -1); got != "victim" {
		t.Errorf("the process that has the pid now belongs to %q", got)
	}
	if got := s.children.execOfPeer(os.Getpid(), pidfd); got != "" {
		t.Errorf("the caller whose pid is used again is %q", got)
	}
}
