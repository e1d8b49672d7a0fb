package e2e

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestASocketOfSystemdOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	if err := os.MkdirAll(filepath.Join(in.Home, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: in.Socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	socket, err := lis.File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	told, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(in.Home, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	// Connections wait until a daemon runs.
	early := in.Start(t, "--no-autostart", "ls", "-q")
	for i := range 2 {
		ended := in.activate(t, socket)
		if i == 0 {
			early.Wait(t).Want(t, 0)
		}
		pid := in.Status(t).PID
		in.Must(t, "daemon", "upgrade")
		wantTold(t, told)
		wantTold(t, told)
		if now := in.Status(t).PID; now != pid {
			t.Errorf("the daemon's pid was %d and is %d", pid, now)
		}
		in.Must(t, "daemon", "stop")
		if err := <-ended; err != nil {
			t.Errorf("agboxd ended with %v", err)
		}
		if _, err := os.Stat(in.Socket()); err != nil {
			t.Errorf("the socket went with the daemon: %v", err)
		}
	}
}

// wantTold reads the message with which a daemon reports that it is ready.
func wantTold(t *testing.T, told *net.UnixConn) {
	t.Helper()
	if err := told.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := told.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1" {
		t.Errorf("systemd is told %q (%v), want that the daemon is ready", buf[:n], err)
	}
}

// activate runs agboxd as systemd does at the first connection.
func (in *install) activate(t *testing.T, socket *os.File) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := in.Command(ctx, "agboxd")
	cmd.Path = "/bin/sh"
	cmd.Args = []string{"sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" run`, filepath.Join(in.Bin, "agboxd")}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(in.Home, "notify"))
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	gone := make(chan struct{})
	go func() { // waited for below
		defer close(gone)
		ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-gone
	})
	return ended
}
