package e2e

import (
	"crypto/md5"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// TestACommandRunsInTheContainerOfAService also checks that the command is not one of the
// sandbox's execs.
func TestACommandRunsInTheContainerOfAService(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.createFrom(t, "image: agbox-test/busybox:latest\nservices:"+web)
	before := in.Must(t, "ps", "-a", "-q", "demo") // the hook of the service
	in.Agbox(t, "exec", "--service", "web", "-e", "A=b", "-w", "/tmp", "-u", "nobody", "demo", "--", "sh", "-c", "cat /www/name; id -un; echo $A; pwd; echo wrong >&2; exit 7").
		Want(t, 7).WantOutput(t, "web\nnobody\nb\n/tmp\n", "wrong\n")
	if after := in.Must(t, "ps", "-a", "-q", "demo"); after != before {
		t.Errorf("the sandbox has the execs %q, and had %q", after, before)
	}

	piped, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
	p := in.StartWith(t, piped, "exec", "-i", "--service", "web", "demo", "md5sum")
	_ = piped.Close()
	if _, err := typed.WriteString(large); err != nil {
		t.Fatal(err)
	}
	_ = typed.Close()
	if sum := strings.Fields(p.Wait(t).Want(t, 0).Stdout); len(sum) == 0 || sum[0] != fmt.Sprintf("%x", md5.Sum([]byte(large))) {
		t.Errorf("the command read %q", sum)
	}
	if out := in.Must(t, "exec", "--service", "web", "demo", "head", "-c", "1048576", "/dev/zero"); len(out) != 1<<20 {
		t.Errorf("the command printed %d bytes", len(out))
	}

	running := in.Start(t, "exec", "--service", "web", "demo", "--", "sh", "-c", "echo on; sleep 1000")
	running.AwaitOutput(t, "on")
	running.Signal(t, syscall.SIGINT)
	if r := running.Wait(t).Want(t, 130); !strings.Contains(r.Stderr, "may go on until the service stops") {
		t.Errorf("agbox said %q", r.Stderr)
	}

	// Engines differ in the code of a program that is missing.
	if r := in.Agbox(t, "exec", "--service", "web", "demo", "no-such-program"); r.Code != 126 && r.Code != 127 || !strings.Contains(r.Stdout, "no-such-program") {
		t.Errorf("a missing program ends with %d and %q", r.Code, r.Stdout)
	}
	in.Agbox(t, "exec", "--service", "db", "demo", "true").Want(t, 125)
	in.Agbox(t, "exec", "--service", "web", "--name", "x", "demo", "true").Want(t, 125)
	kill(t, in.container(t, "web").ID)
	harness.Eventually(t, "the service does not run", func() bool {
		r := in.Agbox(t, "exec", "--service", "web", "demo", "true")
		return r.Code == 125 && strings.Contains(r.Stderr, "does not run")
	})
}

func TestAShellInAServiceHasATerminalOfItsOwn(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.createFrom(t, "image: agbox-test/busybox:latest\nservices:"+web)
	p := in.OnTerminal(t, "shell", "--service", "web", "demo")
	has := func(size string) string { return "until [ \"$(stty size)\" = '" + size + "' ]; do sleep 0.05; done; " }
	p.Types(has("24 80") + "echo this is $(hostname)\r")
	p.Await("this is web\r\n")
	p.Resize(30, 100)
	p.Types(has("30 100") + "echo it is $((3*10))\r")
	p.Await("it is 30\r\n")
	// The program itself says that it is on: a child of the shell has its signals only then.
	p.Types("sh -c 'echo on; exec sleep 1000'\r")
	p.Await("sleep 1000'\r\non\r\n")
	p.Types("\x03")
	p.Await("^C")
	p.Types("exit 5\r")
	if code := p.Wait(); code != 5 {
		t.Errorf("the shell ended with %d", code)
	}
	if p = in.OnTerminal(t, "exec", "-it", "--service", "web", "demo", "tty"); p.Wait() != 0 {
		t.Errorf("the command has no terminal:\n%s", p.Screen())
	}
	p.Await("/dev/pts/")
}
