package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// pipedProcess is agbox with a pipe on its stdin.
type pipedProcess struct {
	*harness.Process
	t    *testing.T
	pipe *os.File
}

func (in *install) piped(t *testing.T, args ...string) *pipedProcess {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	p := &pipedProcess{t: t, pipe: write}
	p.Process = in.StartWith(t, read, args...)
	t.Cleanup(func() { _ = write.Close() })
	return p
}

// Write is bounded: it fails if the process no longer reads.
func (p *pipedProcess) Write(data []byte) (int, error) {
	if err := p.pipe.SetWriteDeadline(time.Now().Add(harness.Patience)); err != nil {
		return 0, err
	}
	return p.pipe.Write(data)
}

func (p *pipedProcess) write(text string) {
	p.t.Helper()
	if _, err := p.Write([]byte(text)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pipedProcess) end() {
	p.t.Helper()
	if err := p.pipe.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// peak returns the peak memory of a process in MiB.
func peak(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

// The reader inside is slower than the writer: data must wait and not be buffered.
func TestALongPipeNeedsNoMemory(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	daemon := in.Status(t).PID
	before := peak(t, daemon)
	const size = 300 << 20
	p := in.piped(t, "exec", "-i", "demo", "sh", "-c", "sleep 1; sha256sum")
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(sum, p), io.LimitReader(newNoise(), size)); err != nil {
		t.Fatal(err)
	}
	ours, daemons := peak(t, p.Cmd.Process.Pid), peak(t, daemon)
	p.end()
	p.Wait(t).Want(t, 0).WantOutput(t, fmt.Sprintf("%x  -\n", sum.Sum(nil)), "")
	t.Logf("peaks: agbox %d MiB, daemon %d MiB (before: %d MiB)", ours, daemons, before)
	if ours > 64 || daemons > before+64 {
		t.Errorf("agbox held up to %d MiB, the daemon %d MiB and %d MiB before: the pipe is kept in memory", ours, daemons, before)
	}
}

// noise is a stream of bytes that does not repeat soon.
type noise struct{ x uint64 }

func newNoise() *noise { return &noise{x: 88172645463325252} }

func (n *noise) Read(p []byte) (int, error) {
	for i := 0; i < len(p); i++ {
		if i%8 == 0 {
			n.x ^= n.x << 13
			n.x ^= n.x >> 7
			n.x ^= n.x << 17
		}
		p[i] = byte(n.x >> (i % 8 * 8))
	}
	return len(p), nil
}

// While a sandbox is being stopped, no daemon links its supervisor any more, so nobody
// knows how much input the command received.
func TestACommandWithInputThatIsStoppedWithoutADaemonKeepsItsLastOutputAndCode(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	const script = `trap 'while [ ! -e /var/log/agents-sandbox/gate ]; do echo tick $((i += 1)); usleep 50000; done; echo flushed; exit 5' TERM
read line; echo got $line; while :; do usleep 50000; done`
	p := in.piped(t, "exec", "-i", "demo", "--", "sh", "-c", script)
	p.write("hello\n")
	p.AwaitOutput(t, "got hello\n")
	stop := in.Start(t, "stop", "demo")
	p.AwaitOutput(t, "tick 1\n")
	in.KillDaemon(t)
	before := strings.Count(p.Stdout.String(), "tick")
	in.Must(t, "daemon", "start")
	p.AwaitOutput(t, fmt.Sprintf("tick %d\n", before+1)) // so it has attached again
	openGate(t, gateOf(in, box))
	if out := p.Wait(t).Want(t, 5).Stdout; !strings.HasSuffix(out, "flushed\n") {
		t.Errorf("the last output is %q", harness.Clip(out))
	}
	stop.Wait(t).Want(t, 0)
}

func TestATreeOfFilesGoesThroughAPipe(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	in.Must(t, "exec", "demo", "mkdir", "/tmp/tree")
	tree := filepath.Join(in.Home, "tree")
	big(t, tree, 500, 2000)
	tar := exec.CommandContext(ctx, "tar", "-C", tree, "-cf", "-", ".")
	out, err := tar.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tar.Start(); err != nil {
		t.Fatal(err)
	}
	p := in.StartWith(t, out.(*os.File), "exec", "-i", "demo", "tar", "-x", "-C", "/tmp/tree")
	p.Wait(t).Want(t, 0)
	if err := tar.Wait(); err != nil {
		t.Error(err)
	}
	if n := in.Must(t, "exec", "demo", "sh", "-c", "find /tmp/tree -type f | wc -l"); n != "500" {
		t.Errorf("%s files arrived", n)
	}
}
