package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		code   int
	}{
		{"INT", syscall.SIGINT, 5},
		{"TERM", syscall.SIGTERM, 6},
		{"QUIT", syscall.SIGQUIT, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			script := harness.UntilSignal(c.name, "echo got it; exit "+string(rune('0'+c.code)), "echo ready")
			p := in.Start(t, "exec", "demo", "--", "sh", "-c", script)
			p.AwaitOutput(t, "ready\n")
			p.Signal(t, c.signal)
			p.Wait(t).Want(t, c.code).WantOutput(t, "ready\ngot it\n", "")
		})
	}
	t.Run("a command that does not catch it", func(t *testing.T) {
		p := in.Start(t, "exec", "demo", "--", "sh", "-c", "echo ready; exec sleep 1000")
		p.AwaitOutput(t, "ready\n")
		p.Signal(t, syscall.SIGINT)
		p.Wait(t).Want(t, 130)
	})
	if running := in.execs(t); len(running) != 0 {
		t.Errorf("ps shows %v, want nothing", running)
	}
}

func TestATerminalThatGoesAwayLeavesTheCommandRunning(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	p := in.Start(t, "exec", "demo", "--", "sh", "-c", harness.UntilSignal("USR1", "echo last; exit 8", "echo ready"))
	p.AwaitOutput(t, "ready\n")
	p.Signal(t, syscall.SIGHUP)
	if ended := p.Wait(t); ended.Signal != syscall.SIGHUP {
		t.Errorf("agbox exec ended with %+v, want the signal", ended)
	}
	running := in.execs(t)
	if len(running) != 1 {
		t.Fatalf("ps shows %v, want the command", running)
	}
	job := running[0].GetExecId()
	in.Must(t, "kill", "-s", "USR1", job)
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, "ready\nlast\n", "")
	if e := in.inspectExec(t, job); e.GetExitCode() != 8 {
		t.Errorf("inspect shows %v, want exit code 8", e)
	}
}

func TestKillEndsAWholeTreeThatIgnoresIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageDebian)
	// The inner one has another session and parent, and all ignore SIGTERM.
	const stubborn = `trap "" TERM
(setsid bash -c 'trap "" TERM; while :; do sleep 1003; done' >/dev/null 2>&1 &)
echo ready
while :; do sleep 1003; done`
	p := in.Start(t, "exec", "demo", "--", "bash", "-c", stubborn)
	p.AwaitOutput(t, "ready\n")
	processes := func() string { return in.Must(t, "exec", "demo", "--", "ps", "-eo", "ppid,args") }
	harness.Eventually(t, "both branches sleep", func() bool {
		return len(regexp.MustCompile(`(?m) sleep 1003$`).FindAllString(processes(), -1)) == 2
	})
	job := in.execs(t)[0].GetExecId()
	in.Must(t, "kill", "--grace", "300ms", job)
	ended := p.Wait(t).Want(t, 137)
	if ended.Stdout != "ready\n" || !strings.HasPrefix(ended.Stderr, "agbox: ") {
		t.Errorf("exec ended with stdout %q and stderr %q, want that it says why", ended.Stdout, ended.Stderr)
	}
	wantCancelled(t, in.inspectExec(t, job), 137, syscall.SIGKILL)
	harness.Eventually(t, "the whole tree is gone", func() bool { return !strings.Contains(processes(), "1003") })
	// Killing it again is no error, but a signal without a receiver is.
	in.Agbox(t, "kill", job).Want(t, 0)
	refused(t, in.Agbox(t, "kill", "-s", "INT", job), 4, job)
}

func wantCancelled(t *testing.T, e *agboxv1.ExecStatus, code int32, signal syscall.Signal) {
	t.Helper()
	if e.GetState() != agboxv1.ExecState_EXEC_STATE_CANCELLED || e.GetErrorCode() != agboxv1.ErrorReason_CANCELLED_BY_REQUEST.String() {
		t.Errorf("the exec is %v (%s), want it cancelled by request", e.GetState(), e.GetErrorCode())
	}
	if e.GetExitCode() != code || e.GetSignal() != int32(signal) || e.GetFinishedAt() == nil {
		t.Errorf("the exec is %v, want its real status: code %d, signal %d", e, code, signal)
	}
}

func TestACancelledCommandKeepsItsRealStatus(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, c := range []struct {
		name, script string
		code         int32
		signal       syscall.Signal
	}{
		{"that sees to its own end", harness.UntilSignal("TERM", "echo tidy; exit 9", "echo ready"), 9, 0},
		{"that the signal ends", "echo ready; exec sleep 1000", 143, syscall.SIGTERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := in.Start(t, "exec", "demo", "--", "sh", "-c", c.script)
			p.AwaitOutput(t, "ready\n")
			job := in.execs(t)[0].GetExecId()
			in.Must(t, "kill", job)
			p.Wait(t).Want(t, int(c.code))
			wantCancelled(t, in.inspectExec(t, job), c.code, c.signal)
		})
	}
}

func TestASignalIsDeliveredAsItIsAndCancelsNothing(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	// Each signal adds one, up to three.
	script := harness.UntilSignal("USR1", "n=$((n+1)); echo $n; [ $n = 3 ] && exit 4", "n=0; echo ready")
	p := in.Start(t, "exec", "--name", "counter", "demo", "--", "sh", "-c", script)
	for i, seen := range []string{"ready\n", "1\n", "2\n"} {
		p.AwaitOutput(t, seen)
		in.Must(t, "kill", "-s", []string{"USR1", "sigusr1", "10"}[i], "counter")
	}
	p.Wait(t).Want(t, 4).WantOutput(t, "ready\n1\n2\n3\n", "")
	e := in.execs(t, "-a", "demo")[0]
	if e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetName() != "counter" {
		t.Errorf("ps -a shows %v, want it finished", e)
	}
}

func TestCtrlCAtAQuestionEndsWith130(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	dir := in.write(t, "shop", map[string]string{"agbox.yaml": "image: " + harness.ImageBusybox + "\nmounts: [\"./sub:/here:rw\"]\n", "sub/a": ""})
	in.from(t, dir, nil, "create", "shop", "--trust", "--workspace", ".").Want(t, 0)
	in.inside(t, "shop", "echo x > new; mkdir .vscode; echo x > .vscode/tasks.json")
	in.Create(t, "rests", harness.ImageBusybox)
	in.Must(t, "stop", "rests")
	for _, c := range []struct {
		asks string
		args []string
	}{
		{"Remove it anyway? [y/N] ", []string{"rm"}},
		{"Remove it anyway? [y/N] ", []string{"rm", "shop"}},
		{"Remove all of these, with their files? [y/N] ", []string{"prune"}},
		{"Bring them too? [y/N] ", []string{"apply"}},
		{"Bring them too? [y/N] ", []string{"sync"}},
		{"remember the answer for this content?", []string{"create", "other"}},
	} {
		p := in.OnTerminalIn(t, dir, nil, c.args...)
		p.Await(c.asks)
		p.Types("\x03")
		if code := p.Wait(); code != 130 || strings.Contains(p.Screen(), "interrupted by") {
			t.Errorf("%v ends with %d: %s", c.args, code, p.Screen())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("the work was brought")
	}
}
