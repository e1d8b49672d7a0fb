package attacks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
)

// neighbourVariable makes the test binary a neighbour that listens on the path in it.
const neighbourVariable = "AGBOX_ATTACKS_LISTEN"

// The users of these tests. They need no entries in passwd.
const (
	victim    = 65533
	neighbour = 65534
)

// pretendToBeTheDaemon listens on a socket that everybody may use and prints what it is
// sent, until its standard input ends.
func pretendToBeTheDaemon(path string) int {
	syscall.Umask(0)
	listener, err := net.Listen("unix", path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("listens")
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			sent, _ := io.ReadAll(conn)
			fmt.Printf("was sent %d bytes\n", len(sent))
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// listener is a neighbour's process.
type listener struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	output *harness.Output
}

// listenAs starts a process of another user that listens on a path.
func listenAs(t *testing.T, uid uint32, path string) *listener {
	t.Helper()
	// The other user cannot reach the folder of this binary, but its own executable.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "/proc/self/exe")
	cmd.Env = []string{neighbourVariable + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	l := &listener{cmd: cmd, output: harness.NewOutput()}
	cmd.Stdout, cmd.Stderr = l.output, l.output
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	l.stdin = stdin
	t.Cleanup(l.end)
	harness.Eventually(t, "the neighbour listens", func() bool { return strings.Contains(l.output.String(), "listens") })
	return l
}

// end ends the process, which has printed everything then.
func (l *listener) end() {
	_ = l.stdin.Close()
	_ = l.cmd.Wait()
}

// wantNothingSent wants an error that names the other user, and that nothing was sent.
func (l *listener) wantNothingSent(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, client.ErrDaemonUnreachable) || !strings.Contains(fmt.Sprint(err), "belongs to another user") {
		t.Errorf("the error is %v", err)
	}
	l.end()
	if said := l.output.String(); strings.Contains(said, "was sent") && !strings.Contains(said, "was sent 0 bytes") {
		t.Errorf("the neighbour says %q", said)
	}
}

// folderOf makes a folder of a user.
func folderOf(t *testing.T, uid int, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, uid, uid), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func ping(t *testing.T, socket string) error {
	t.Helper()
	c, err := client.New(client.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Connect(t.Context())
}

func TestNothingIsSentToAListenerOfAnotherUser(t *testing.T) {
	Row(t, 15, "another user listens where the daemon should, in a folder that all may write to")
	Row(t, 15, "another user listens in a folder of its own")
	open := filepath.Join(folderOf(t, 0, 0o777|os.ModeSticky), "s")
	listenAs(t, neighbour, open).wantNothingSent(t, ping(t, open))
	own := filepath.Join(folderOf(t, neighbour, 0o755), "s")
	listenAs(t, neighbour, own).wantNothingSent(t, ping(t, own))
}

func TestASocketThatOthersCanReplaceIsRefused(t *testing.T) {
	Row(t, 15, "the daemon's socket is in a folder in which others can replace it")
	dir := folderOf(t, 0, 0o777)
	listenAs(t, 0, filepath.Join(dir, "s"))
	if err := ping(t, filepath.Join(dir, "s")); err == nil || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("Connect gives %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := ping(t, filepath.Join(dir, "s")); err != nil {
		t.Errorf("Connect to a socket in a folder of its user: %v", err)
	}
}

func TestAFallbackFolderThatAnotherUserMadeFirstIsRefused(t *testing.T) {
	Row(t, 15, "another user makes the folder in /tmp first, and listens there")
	Row(t, 15, "another user makes a link in place of the folder in /tmp")
	temp := folderOf(t, 0, 0o777|os.ModeSticky)
	name := filepath.Join(temp, fmt.Sprintf("agbox-%d", victim))
	in := harness.New(t, func(in *harness.Install) {
		in.Who = &syscall.Credential{Uid: victim, Gid: victim}
		in.Env = []string{"AGBOX_HOME=", "TMPDIR=" + temp}
	})
	if err := errors.Join(os.Mkdir(name, 0o755), os.Chown(name, neighbour, neighbour)); err != nil {
		t.Fatal(err)
	}
	l := listenAs(t, neighbour, filepath.Join(name, "agboxd.sock"))
	for _, command := range [][]string{{"ps"}, {"daemon", "start"}, {"daemon", "stop"}} {
		if said := in.Agbox(t, command...); said.Code == 0 || !strings.Contains(said.Stderr, name+", where the daemon's socket should be, belongs to another user (uid 65534)") {
			t.Errorf("agbox %v gives %d: %s", command, said.Code, said.Stderr)
		}
	}
	l.end()
	if strings.Contains(l.output.String(), "was sent") {
		t.Errorf("the neighbour says %q", l.output.String())
	}

	// A link of the neighbour to a folder of the victim.
	target := folderOf(t, victim, 0o700)
	if err := errors.Join(os.RemoveAll(name), os.Symlink(target, name), os.Lchown(name, neighbour, neighbour)); err != nil {
		t.Fatal(err)
	}
	if said := in.Agbox(t, "daemon", "start"); said.Code == 0 || !strings.Contains(said.Stderr, "belongs to another user") {
		t.Errorf("agbox daemon start behind a link gives %d: %s", said.Code, said.Stderr)
	}
}
