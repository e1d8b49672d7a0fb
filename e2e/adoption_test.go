package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// loseDatabase kills the daemon and removes its database.
func (in *install) loseDatabase(t *testing.T) {
	t.Helper()
	in.KillDaemon(t)
	if err := os.Remove(in.database()); err != nil {
		t.Fatal(err)
	}
}

// counting prints numbers until the gate opens, and then the word end.
const counting = "i=0; while [ ! -e /var/log/agents-sandbox/gate ]; do i=$((i+1)); echo $i; usleep 10000; done; echo end; exit 23"

// countsOnce marks in the log folder that a command was started.
func countsOnce(name string) string {
	return "echo x >> /var/log/agents-sandbox/ran-" + name + "; "
}

func TestCommandsOfALostDatabaseAreAdopted(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Dir(gateOf(in, box))
	run := func(name string, args ...string) string {
		last := len(args) - 1
		args[last] = countsOnce(name) + args[last]
		return in.Must(t, append([]string{"exec"}, args...)...)
	}
	ended := run("ended", "-d", "demo", "--", "sh", "-c", "echo over; exit 7")
	in.Agbox(t, "logs", "-f", ended).Want(t, 0).WantOutput(t, "over\n", "")
	jobs := map[string]string{
		"counter": run("counter", "-d", "--name", "counter", "--timeout", "1h", "-u", "0:0", "-w", "/tmp", "demo", "--", "sh", "-c", counting),
		"trap":    run("trap", "-d", "--name", "trap", "demo", "--", "sh", "-c", harness.UntilSignal("USR1", "echo caught; exit 5", "echo first")),
		"reader":  run("reader", "-di", "--name", "reader", "demo", "--", "sh", "-c", "read x; echo got $x; exit 4"),
		"shell":   run("shell", "-dit", "--name", "shell", "demo", "--", "sh", "-c", "read x; echo typed $x; exit 6"),
	}
	before := make(map[string]*agboxv1.ExecStatus)
	for name, id := range jobs {
		before[name] = in.inspectExec(t, id)
	}
	follower := in.Start(t, "logs", "-f", jobs["counter"])
	follower.AwaitOutput(t, "3\n")

	in.loseDatabase(t)
	wantNoStart(t, in.Agbox(t, "ls"), "agbox doctor --fix")
	if f := find(t, in.doctor(t, 0, "--fix"), runtime.PrimaryName(box)); !f.Done || !strings.Contains(f.Why, "5 commands are adopted, 4 of them running.") {
		t.Errorf("doctor says %+v", f)
	}

	for name, id := range jobs {
		wantSameExec(t, in.inspectExec(t, id), before[name])
	}
	if e := in.inspectExec(t, ended); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 7 ||
		!strings.HasSuffix(strings.Join(e.GetCommand(), " "), "exit 7") || e.GetStdoutBytes() != 5 {
		t.Errorf("of the command that had ended inspect shows %v", e)
	}
	in.Agbox(t, "logs", ended).Want(t, 0).WantOutput(t, "over\n", "")
	if running := in.execs(t); len(running) != len(jobs) {
		t.Errorf("ps shows %v, want the %d running commands", running, len(jobs))
	}
	wantCounting(t, in, follower, jobs["counter"], folder)
	in.Must(t, "kill", "-s", "USR1", "trap")
	in.Agbox(t, "attach", jobs["trap"]).Want(t, 5).WantOutput(t, "first\ncaught\n", "")
	reader := in.piped(t, "attach", "reader")
	reader.write("words\n")
	reader.Wait(t).Want(t, 4).WantOutput(t, "got words\n", "")
	shell := in.OnTerminal(t, "attach", "shell")
	shell.Types("keys\r")
	shell.Await("typed keys")
	if code := shell.Wait(); code != 6 {
		t.Errorf("the command on a terminal ends with %d", code)
	}
	for _, name := range []string{"ended", "counter", "trap", "reader", "shell"} {
		wantFile(t, filepath.Join(folder, "ran-"+name), "x\n")
	}
	in.Agbox(t, "exec", "--name", "counter", "demo", "--", "echo", "next").Want(t, 0).WantOutput(t, "next\n", "")
	in.doctor(t, 0)
}

// wantSameExec checks that an adopted command is shown as before.
func wantSameExec(t *testing.T, got, want *agboxv1.ExecStatus) {
	t.Helper()
	got, want = proto.CloneOf(got), proto.CloneOf(want)
	if apart := got.GetStartedAt().AsTime().Sub(want.GetStartedAt().AsTime()); apart.Abs() > harness.Patience {
		t.Errorf("an adopted command started %v after its start", apart)
	}
	for _, e := range []*agboxv1.ExecStatus{got, want} {
		e.LastEventSequence, e.StartedAt, e.EnvOverrides = 0, nil, nil // the environment is not kept
	}
	if !proto.Equal(got, want) {
		t.Errorf("an adopted command is shown as\n%v\nand was\n%v", got, want)
	}
}

// wantCounting checks that followers of the counter get every number once, those of
// before the loss too.
func wantCounting(t *testing.T, in *install, early *harness.Process, job, folder string) {
	t.Helper()
	late := in.Start(t, "logs", "-f", job)
	late.AwaitOutput(t, "1\n2\n3\n")
	openGate(t, filepath.Join(folder, "gate"))
	lines := strings.Fields(late.Wait(t).Want(t, 0).Stdout)
	for i, line := range lines[:len(lines)-1] {
		if line != strconv.Itoa(i+1) {
			t.Fatalf("line %d of the counter is %q", i+1, line)
		}
	}
	if last := lines[len(lines)-1]; last != "end" {
		t.Errorf("the last line of the counter is %q", last)
	}
	if e := in.inspectExec(t, job); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 23 {
		t.Errorf("after its end inspect shows %v", e)
	}
	// The follower of before gave up when no daemon could start, or goes on without a gap.
	if got := early.Wait(t).Stdout; !strings.HasPrefix(strings.Join(lines, "\n")+"\n", got) {
		t.Errorf("the follower of before the loss got\n%s", got)
	}
}

func TestCommandsThatRanInADeadContainerAreAdoptedAsLost(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	gate := gateOf(in, box)
	ends := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", gated+"exit 23")
	lost := in.Must(t, "exec", "-d", "--name", "lost", "demo", "--", "sh", "-c", countsOnce("lost")+"echo before; exec sleep 1000")
	follower := in.Start(t, "logs", "-f", lost)
	follower.AwaitOutput(t, "before\n")
	container := in.primary(t, box).ID
	in.loseDatabase(t)
	openGate(t, gate)
	harness.Eventually(t, "the supervisor writes the status", func() bool { return harness.LeftStatus(t, filepath.Dir(gate), ends) })
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), container, "KILL"); err != nil {
		t.Fatal(err)
	}
	in.doctor(t, 0, "--fix")

	if e := in.inspectExec(t, ends); e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 23 {
		t.Errorf("of the command that had ended inspect shows %v, want exit code 23", e)
	}
	if e := in.inspectExec(t, lost); e.GetErrorCode() != agboxv1.ErrorReason_EXEC_LOST.String() || e.GetExitCode() == 0 || e.GetName() != "lost" {
		t.Errorf("of the command that had not inspect shows %v, want it lost", e)
	}
	in.Agbox(t, "logs", "-f", lost).WantOutput(t, "before\n", "")
	in.Must(t, "start", "demo")
	in.Agbox(t, "exec", "demo", "--", "echo", "awake").Want(t, 0).WantOutput(t, "awake\n", "")
	wantFile(t, filepath.Join(filepath.Dir(gate), "ran-lost"), "x\n")
}
