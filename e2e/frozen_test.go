package e2e

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// frozen listens on the daemon's socket, accepts all connections and never answers, like
// a stopped daemon. The channel has a value for each connection that a client has begun
// to use.
func (in *install) frozen(t *testing.T) <-chan struct{} {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(in.Socket()), 0o700); err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("unix", in.Socket())
	if err != nil {
		t.Fatal(err)
	}
	used, ended := make(chan struct{}, 64), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := io.ReadFull(conn, make([]byte, 24)); err == nil { // the HTTP/2 preface
				used <- struct{}{}
			}
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-ended })
	return used
}

func TestSIGTERMEndsEveryCommandAtADaemonThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	used := in.frozen(t)
	file := filepath.Join(in.Home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"exec demo -- true", "exec -d demo -- true", "exec -i demo -- cat", "exec -t demo -- cat",
		"run image -- true", "run --rm image -- true", "run -i image -- true",
		"create --image image", "create --no-wait --image image",
		"attach job", "attach --look-on job", "cp FILE demo:/tmp", "cp demo:/tmp FILE", "logs -f job", "logs demo",
		"ls", "ps demo", "stop demo", "start demo", "rm demo", "kill job", "events -f", "inspect demo", "stats demo", "port demo",
		"image ls", "image pull image", "doctor", "daemon stop", "daemon upgrade", "version",
	} {
		t.Run(line, func(t *testing.T) {
			args := strings.Fields(strings.ReplaceAll(line, "FILE", file))
			for len(used) > 0 {
				<-used // a second connection of the previous client
			}
			p := in.Start(t, args...)
			select {
			case <-used:
			case <-p.Ended():
			}
			p.Signal(t, syscall.SIGTERM)
			if end := p.Wait(t); end.Code != 143 && end.Signal != syscall.SIGTERM {
				t.Errorf("it ended with %+v", end)
			}
		})
	}
	t.Run("shell demo", func(t *testing.T) {
		for _, args := range [][]string{{"shell", "demo"}, {"exec", "-it", "demo", "--", "sh"}, {"run", "-it", "image", "--", "sh"}} {
			for len(used) > 0 {
				<-used
			}
			p := in.OnTerminal(t, args...)
			<-used
			if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-p.Ended()
			status := p.Cmd.ProcessState.Sys().(syscall.WaitStatus)
			if status.ExitStatus() != 143 && status.Signal() != syscall.SIGTERM {
				t.Errorf("%v ended with %v", args, p.Cmd.ProcessState)
			}
		}
	})
}
