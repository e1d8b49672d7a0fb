package attacks

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// hogVariable makes the test binary a process that takes all inotify instances of its user.
const hogVariable = "AGBOX_ATTACKS_HOG"

// holdInstances makes inotify instances until the kernel allows no more. It holds them
// until its standard input ends.
func holdInstances() int {
	for {
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
			fmt.Println("refused:", err)
			break
		}
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

// holder is a process that holds something of its user until its standard input ends.
type holder struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// takeInstances starts a process of a user that takes all its inotify instances.
func takeInstances(t *testing.T, uid uint32) *holder {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{hogVariable + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	said := harness.NewOutput()
	cmd.Stdout, cmd.Stderr = said, said
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: cmd, stdin: stdin}
	t.Cleanup(h.end)
	harness.Eventually(t, "the instances are taken", func() bool { return strings.Contains(said.String(), "refused:") })
	return h
}

func (h *holder) end() {
	_ = h.stdin.Close()
	_ = h.cmd.Wait()
}

func TestADaemonStartsWithoutInotifyInstances(t *testing.T) {
	t.Parallel()
	Row(t, 11, "a process takes all inotify instances of the daemon's user")
	in := harness.New(t, asMemberOfDocker(t, poorUser))
	hog := takeInstances(t, poorUser)
	box := in.Create(t, "box", harness.ImageBusybox)
	follower := in.Start(t, "exec", box, "--", "sh", "-c", "mkfifo /tmp/fifo; echo begun; read line < /tmp/fifo; echo $line")
	follower.AwaitOutput(t, "begun")
	if said := in.Agbox(t, "doctor").Stdout; !strings.Contains(said, "no inotify instance or watch left") {
		t.Errorf("doctor says %q", said)
	}
	in.Must(t, "exec", box, "--", "sh", "-c", "echo later > /tmp/fifo")
	follower.AwaitOutput(t, "later")
	follower.Wait(t).Want(t, 0)
	hog.end()
	harness.Eventually(t, "inotify is used again", func() bool {
		in.Must(t, "exec", box, "--", "true")
		return !strings.Contains(in.Agbox(t, "doctor").Stdout, "inotify")
	})
}

// poorUser is a user whose limits tests use up. No other test runs as this user.
const poorUser = 64321

// asMemberOfDocker makes a user that may use Docker, and has no other rights, run an
// install.
func asMemberOfDocker(t *testing.T, uid uint32) func(*harness.Install) {
	t.Helper()
	socket, err := os.Stat(strings.TrimPrefix(harness.DockerAPI.DaemonHost(), "unix://"))
	if err != nil {
		t.Fatal(err)
	}
	group := socket.Sys().(*syscall.Stat_t).Gid
	return func(in *harness.Install) {
		in.Who = &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{group}}
	}
}
