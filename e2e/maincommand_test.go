package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// serves is a main command that says how often it was started and that ends with
// code 9 on USR1.
const serves = `echo start >>/workdir/starts; echo $$ >/workdir/pid; ` +
	`exec 3>&2 2>/dev/null; trap 'echo bye; exit 9' USR1; echo "serving $(wc -l </workdir/starts)"; while :; do sleep 0.05; done`

func (in *install) createServing(t *testing.T, more ...string) string {
	t.Helper()
	args := append([]string{"create", "demo", "--image", harness.ImageBusybox}, more...)
	return in.Must(t, append(args, "--", "sh", "-c", serves)...)
}

func TestTheMainCommandIsAnExecLikeAnyOther(t *testing.T) {
	for _, who := range accounts(t) {
		t.Run("as "+who.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(who))
			box := in.createServing(t)
			// It exists as soon as the sandbox is READY.
			list := in.execs(t, "demo")
			if len(list) != 1 || list[0].GetExecId() != "main-"+box || list[0].GetName() != "main" || !list[0].GetMain() ||
				list[0].GetCommand()[2] != serves || list[0].GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
				t.Fatalf("ps shows %v", list)
			}
			follower := in.Start(t, "logs", "-f", "demo/main")
			follower.AwaitOutput(t, "serving 1\n")
			attached := in.Start(t, "attach", box+"/main-"+box)
			attached.AwaitOutput(t, "serving 1\n")
			if e := in.inspectExec(t, box[:6]+"/main"); e.GetExecId() != "main-"+box || e.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
				t.Errorf("inspect shows %v", e)
			}
			refused(t, in.Agbox(t, "logs", "demo/other"), 3, "no exec")
			refused(t, in.Agbox(t, "logs", "other/main"), 3, "no sandbox")
			refused(t, in.Agbox(t, "kill", "demo/main/x"), 2, "SANDBOX/NAME")
			in.Must(t, "kill", "-s", "USR1", "main")
			follower.Wait(t).Want(t, 0).WantOutput(t, "serving 1\nbye\n", "")
			attached.Wait(t).Want(t, 9)
			if e := in.inspectExec(t, "demo/main"); e.GetExitCode() != 9 || e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || !e.GetMain() {
				t.Errorf("inspect shows %v", e)
			}
			// The sandbox continues without it.
			in.Agbox(t, "exec", "demo", "--", "true").Want(t, 0)
			if all := in.execs(t, "-a", "demo"); len(all) != 2 {
				t.Errorf("ps -a shows %v, want the main command and the other", all)
			}
		})
	}
}

func TestEveryLifeOfASandboxHasAMainCommandOfItsOwn(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.createServing(t)
	in.Start(t, "logs", "-f", "demo/main").AwaitOutput(t, "serving 1\n")
	in.Must(t, "stop", "demo")
	first := in.inspectExec(t, "demo/main")
	if first.GetExecId() != "main-"+box || first.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("after the stop it is %v", first)
	}
	in.Must(t, "start", "demo")
	second := in.inspectExec(t, "demo/main")
	if second.GetExecId() != "main-"+box+"-2" || second.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("after the start it is %v", second)
	}
	in.Start(t, "logs", "-f", "demo/main").AwaitOutput(t, "serving 2\n")
	in.Agbox(t, "logs", "main-"+box).Want(t, 0).WantOutput(t, "serving 1\n", "")
	in.Must(t, "rm", "demo")
	// The records of a removed sandbox are found by its id.
	if e := in.inspectExec(t, box+"/main"); e.GetExecId() != "main-"+box+"-2" || e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("after the removal it is %v", e)
	}
}

func TestAMainCommandIsRecordedAlsoWhenTheLogsOfEarlierRunsAreGone(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.createServing(t)
	for _, run := range []string{"-2", "-3"} {
		// A run that is stopped before its shell has begun does not count itself.
		in.Start(t, "logs", "-f", "demo/main").AwaitOutput(t, "serving ")
		in.Must(t, "stop", "demo")
		if err := os.RemoveAll(filepath.Join(in.Home, "data", "exec-logs", box)); err != nil {
			t.Fatal(err)
		}
		in.Must(t, "start", "demo")
		if e := in.inspectExec(t, "demo/main"); e.GetExecId() != "main-"+box+run || e.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING {
			t.Errorf("after the start it is %v, want run %s", e, run)
		}
	}
	in.Start(t, "logs", "-f", "demo/main").AwaitOutput(t, "serving 3\n")
}

func TestTheMainCommandRunsOnAndEndsWithoutADaemon(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.createServing(t)
	follower := in.Start(t, "--no-autostart", "logs", "-f", "demo/main")
	follower.AwaitOutput(t, "serving 1\n")
	in.KillDaemon(t)
	if e := in.inspectExec(t, "demo/main"); e.GetState() != agboxv1.ExecState_EXEC_STATE_RUNNING || e.GetExecId() != "main-"+box {
		t.Errorf("under the next daemon it is %v", e)
	}
	in.Must(t, "exec", "-d", "demo", "--", "sh", "-c",
		"while [ ! -e /var/log/agents-sandbox/gate ]; do sleep 0.05; done; kill -USR1 $(cat /workdir/pid)")
	in.KillDaemon(t)
	openGate(t, gateOf(in, box))
	in.awaitStatus(t, box, "main-"+box)
	in.Must(t, "daemon", "start")
	follower.Wait(t).Want(t, 0).WantOutput(t, "serving 1\nbye\n", "")
	if e := in.inspectExec(t, "demo/main"); e.GetExitCode() != 9 || e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("it ended without a daemon, and is %v", e)
	}
	// Neither the restarts nor the end have made a second record.
	starts := 0
	for line := range strings.Lines(in.Must(t, "events", "-o", "json", box)) {
		if strings.Contains(line, `"EXEC_STARTED"`) && strings.Contains(line, `"main":true`) {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("it was recorded %d times", starts)
	}
}

func TestASandboxThatOnlyRunsItsMainCommandIsIdle(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.createServing(t, "--idle-ttl", "1s")
	harness.Eventually(t, "the sandbox is stopped, since nobody uses it", func() bool {
		return in.list(t)[0].GetState() == agboxv1.SandboxState_SANDBOX_STATE_STOPPED
	})
	if e := in.inspectExec(t, box+"/main"); e.GetState() == agboxv1.ExecState_EXEC_STATE_RUNNING {
		t.Errorf("its command is %v", e)
	}
}

func TestAMainCommandThatCannotBeStartedIsShownAsFailed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "create", "demo", "--image", harness.ImageBusybox, "--", "/no/such/program")
	harness.Eventually(t, "the failure is recorded", func() bool {
		e := in.inspectExec(t, "demo/main")
		return e.GetState() == agboxv1.ExecState_EXEC_STATE_FAILED && e.GetErrorCode() == "COMMAND_NOT_FOUND"
	})
	in.Must(t, "create", "idle", "--image", harness.ImageBusybox)
	refused(t, in.Agbox(t, "logs", "idle/main"), 3, "no exec")
}

// awaitStatus waits until the status file of an exec has its end, with or without a
// daemon.
func (in *install) awaitStatus(t *testing.T, box, execID string) {
	t.Helper()
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	harness.Eventually(t, "the supervisor writes the status of "+execID, func() bool { return harness.LeftStatus(t, folder, execID) })
}
